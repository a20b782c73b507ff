"""Fields put into and taken out of JSON by bytes: what is not touched stays as it was."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.capture.reply import parse_ids
from gyre.proxy.capture.splice import Object, parse_list, parse_object, set_fields, without
from gyre.proxy.errors import RequestError
from tests.proxy.json_text import KEYS, SCALARS, layouts

FIELDS = st.dictionaries(
    st.sampled_from(["model", "stream", "logprobs", "new", "top_k"]), SCALARS, max_size=4
)


def encoded(fields: dict[str, Any]) -> dict[str, bytes]:
    return {key: json.dumps(value).encode() for key, value in fields.items()}


@given(layouts(), FIELDS)
def test_setting_fields_agrees_with_a_json_parser(text: str, fields: dict[str, Any]) -> None:
    body = text.encode()
    assert json.loads(set_fields(body, parse_object(body), encoded(fields))) == json.loads(text) | fields


@given(layouts(), FIELDS)
def test_setting_fields_keeps_every_other_byte(text: str, fields: dict[str, Any]) -> None:
    body = text.encode()
    top = parse_object(body)
    changed = set_fields(body, top, encoded(fields))
    after = parse_object(changed)
    kept = [key for key in top if key not in fields]
    assert [bytes(after[key]) for key in kept] == [bytes(top[key]) for key in kept]
    put_back = {key: bytes(top[key]) for key in fields if key in top}
    restored = set_fields(changed, after, put_back)
    added = ",".join(f'"{key}":{json.dumps(value)}' for key, value in fields.items() if key not in top)
    expected = re.sub(r"\}(\s*)$", lambda m: ("," if top and added else "") + added + "}" + m[1], text)
    assert restored == expected.encode()


@given(layouts(), st.sets(KEYS, max_size=4))
def test_taking_keys_out_keeps_values_and_their_order(text: str, keys: set[str]) -> None:
    top = parse_object(text.encode())
    left = without(top, keys)
    assert json.loads(left) == {key: value for key, value in json.loads(text).items() if key not in keys}
    assert [bytes(value) for value in parse_object(left).values()] == [
        bytes(value) for key, value in top.items() if key not in keys
    ]


def test_of_duplicate_keys_the_one_that_parsers_take_is_replaced() -> None:
    body = b'{"stream":true,"n":1,"stream":true}'
    assert (
        set_fields(body, parse_object(body), {"stream": b"false"}) == b'{"stream":true,"n":1,"stream":false}'
    )


def test_a_key_written_with_escapes_is_the_same_key() -> None:
    body = b'{"logpr\\u006fbs": false}'
    assert set_fields(body, parse_object(body), {"logprobs": b"true"}) == b'{"logpr\\u006fbs": true}'


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'{"a":1}\n'])
def test_fields_are_added_at_the_end(body: bytes) -> None:
    changed = set_fields(body, parse_object(body), {"x": b"1", "y": b"null"})
    assert json.loads(changed) == json.loads(body) | {"x": 1, "y": None}


def test_text_that_looks_like_a_field_is_left_alone() -> None:
    body = b'{"messages":[{"content":"set \\"logprobs\\":false}"}],"tools":{"logprobs":false}}'
    changed = set_fields(body, parse_object(body), {"logprobs": b"true"})
    assert changed == body[:-1] + b',"logprobs":true}'


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"a": 1,}', "byte 8"),
        (b'{"a": NaN}', "byte 6"),
        (b'{"a": 1} x', "byte 10"),
        (b'{"a": 1', "byte 7"),
        (b"", "byte 0"),
        (b"\xef\xbb\xbf{}", "byte 0"),
        (b'{"\xff": 1}', "byte 2"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b"[1]", "array"),
        (b"null", "null"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_place(body: bytes, place: str) -> None:
    with pytest.raises(RequestError, match=place) as caught:
        msgspec.json.decode(parse_object(body)["a"])
    assert caught.value.status == 400


def test_a_list_of_values_is_split_without_reading_them() -> None:
    top: Object = parse_object(b'{"a":[1.0, {"b" :1e3},"]"],"c":"[1]"}')
    assert [bytes(raw) for raw in parse_list(top["a"]) or ()] == [b"1.0", b'{"b" :1e3}', b'"]"']
    assert parse_list(top["c"]) is None


LONG = 3000


@pytest.mark.parametrize("count", [1, LONG])
@pytest.mark.parametrize("space", [b"", b" ", b"\n\t"])
def test_ids_are_read_whole(count: int, space: bytes) -> None:
    text = b"[" + (b"," + space).join([b"151643"] * count) + space + b"]"
    assert (ids := parse_ids(text)) is not None
    assert ids.tolist() == [151643] * count


@pytest.mark.parametrize("count", [1, LONG])
@pytest.mark.parametrize(
    "wrong", [b'"a"', b"[1,2]", b"1.5", b"1.0", b"1e2", b"null", b"true", b"99999999999", b"2147483648"]
)
def test_what_is_no_list_of_ids_is_never_read_as_one(count: int, wrong: bytes) -> None:
    assert parse_ids(b"[" + b"1," * count + wrong + b"]") is None
    assert parse_ids(b"[" + b",".join([wrong] * count) + b"]") is None


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_an_empty_list_has_no_ids(size: int) -> None:
    assert (ids := parse_ids(b"[" + b" " * size + b"]")) is not None
    assert ids.tolist() == []


@pytest.mark.parametrize("text", [b"null", b'"1,2"', b"{}", b"7", b'"' + b"1," * LONG + b'1"'])
def test_other_values_are_no_ids(text: bytes) -> None:
    assert parse_ids(text) is None
