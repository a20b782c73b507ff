"""Fields put into and taken out of JSON objects, by bytes and at the top level only.

Bodies of megabytes are never parsed and dumped: msgspec finds where values begin and end, and what
is not touched stays byte for byte what it was (key order, number forms, escapes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import pyarrow as pa

from gyre.proxy.errors import RequestError

Object = dict[str, msgspec.Raw]
"""The top level of a JSON object; values are views into the body."""

_decode_object = msgspec.json.Decoder(Object).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parse_object(body: bytes) -> Object:
    """The top level of a request body.

    Raises:
        RequestError: status 400, with the place of the fault.
    """
    try:
        return _decode_object(body)
    except msgspec.ValidationError as error:
        raise RequestError(f"request body is not a JSON object: {error}", code="invalid_json") from error
    except msgspec.DecodeError as error:
        why = f"{error}{_place(body, str(error))}"
        raise RequestError(f"request body is not valid JSON: {why}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("request body is nested too deeply", code="invalid_json") from error


def _place(body: bytes, problem: str) -> str:
    """Where the fault is, when msgspec does not say."""
    if "byte " in problem:
        return ""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f" (byte {error.start})"
    return f" (byte {len(body)})"


def parse_list(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    """The elements of a JSON array, or None when the value is something else."""
    try:
        return _decode_list(raw)
    except msgspec.ValidationError:
        return None


def offset(body: bytes, value: msgspec.Raw) -> int:
    """Where a value decoded from `body` begins in it."""
    return address(value) - address(body)


def address(data: bytes | msgspec.Raw) -> int:
    """Where the bytes are in memory: views into one buffer tell their places by it."""
    place: int = pa.py_buffer(data).address  # a tenth of what numpy takes to say so
    return place


def set_fields(body: bytes, top: Object, fields: Mapping[str, bytes]) -> bytes:
    """`body` with each field set to its JSON text: replaced where it stands, else added at the end.

    The last of duplicate keys is the one replaced, which is the one that parsers take.
    """
    return b"".join(with_fields(body, top, fields))


def with_fields(body: bytes, top: Object, fields: Mapping[str, bytes]) -> list[memoryview | bytes]:
    """The same as pieces, of which those of `body` are views: nothing large is copied."""
    changes: list[tuple[int, int, bytes]] = []
    added: list[bytes] = []
    for key, value in fields.items():
        if key in top:
            start = offset(body, top[key])
            changes.append((start, start + memoryview(top[key]).nbytes, value))
        else:
            added.append(b'"%s":%s' % (key.encode(), value))
    if added:
        end = body.rindex(b"}")
        changes.append((end, end, (b"," if top else b"") + b",".join(added)))
    view, at = memoryview(body), 0
    pieces: list[memoryview | bytes] = []
    for start, end, value in sorted(changes):
        pieces += [view[at:start], value]
        at = end
    return [*pieces, view[at:]]


def without(top: Mapping[str, msgspec.Raw | bytes], keys: Collection[str]) -> bytes:
    """The object's JSON text without `keys`; values and their order stay as they were."""
    return b"{%s}" % b",".join(
        b"%s:%s" % (msgspec.json.encode(key), value if isinstance(value, bytes) else bytes(value))
        for key, value in top.items()
        if key not in keys
    )
