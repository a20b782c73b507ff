"""Who may ask for what: the proxy's token opens all but what steers an engine.

The key of an execution opens its calls, and what is only read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from gyre.proxy.calls import Wire
from gyre.proxy.errors import RequestError
from gyre.proxy.identity import api_key, execution_key
from gyre.proxy.log.record.attempt import Call
from gyre.proxy.steering import READS, steers


def require_access(call: Call, headers: Mapping[str, str], token: str | None) -> None:
    """Raises RequestError for what is not to reach an engine."""
    confined = token is not None and not _shows_token(call, headers, token)
    if call.wire != Wire.OPAQUE:
        return
    if steers(call.method, call.path):
        raise RequestError(
            "this proxy does not pass routes that steer an engine",
            status=403,
            code="steering_route",
            hint="ask the engine itself",
        )
    if confined and call.method not in READS:
        # An engine's own ways to sample are among them: no limit, no pin and no record of ids holds there.
        raise RequestError(
            "the key of an execution opens `chat/completions`, `completions`, `messages`, "
            "`messages/count_tokens`, `responses`, and what is only read",
            status=403,
            code="unknown_route",
        )


def _shows_token(call: Call, headers: Mapping[str, str], token: str) -> bool:
    """Whether it is the proxy's token, and not the key of that execution. Raises RequestError for neither."""
    shown = (headers.get("x-gyre-token") or api_key(headers) or "").encode()
    if hmac.compare_digest(shown, token.encode()):
        return True
    if hmac.compare_digest(shown, execution_key(call.identity.execution_id, token).encode()):
        return False
    raise RequestError("the proxy's token is missing or wrong", status=401, code="invalid_token")
