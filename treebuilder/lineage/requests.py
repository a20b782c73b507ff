"""What every call asked for, also where its own row does not say it. Pure.

Of the attempts of one call only the last row carries the request, and none does where the proxy died in
it; all have the digest of the body. Equal bodies are equal messages and tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gyre.treebuilder.call import Call


def with_requests(calls: Sequence[Call]) -> list[Call]:
    """The calls, those without a request given that of another row with the same digest.

    Nothing is copied: such a call has all its messages from that row, as from a parent. So what is new
    in its prompt must be placed before.
    """
    carriers: dict[bytes, Call] = {}
    for call in calls:
        if carries_request(call):
            carriers.setdefault(_body(call), call)
    return [
        call if carries_request(call) or carrier is None else _lent(call, carrier)
        for call in calls
        for carrier in [carriers.get(_body(call))]
    ]


def carries_request(call: Call) -> bool:
    return bool(call.messages or call.messages_shared or call.tools)


def _lent(call: Call, carrier: Call) -> Call:
    length = carrier.messages_shared + len(carrier.messages)
    return replace(call, parent=carrier.key, messages_shared=length, messages=[], tools=carrier.tools)


def _body(call: Call) -> bytes:
    """Names the request: without a digest, attempts of one call still are the same."""
    return call.request_digest or call.key.call_id.encode()
