"""JSON in any layout: spaces, escapes, duplicate keys, odd numbers. Strategies for property tests."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "logprobs", "é", 'x"y', "choices"]), inner, max_size=3),
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["model", "messages", "stream", "logprobs", "n", "é", 'q"', "\\", "", "a b"])
SPACES = st.sampled_from(["", "", " ", "\n", "\t ", "\r\n"])
_SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])


@st.composite
def values(draw: st.DrawFn, of: st.SearchStrategy[Any] = _VALUES) -> str:
    """The text of one value; numbers also in forms that Python would not write."""
    value = draw(of)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=draw(_SEPARATORS))
    if isinstance(value, int) and not isinstance(value, bool):
        return draw(st.sampled_from([text, text + ".0", text + "e2", text + "E+1"]))
    return text


@st.composite
def objects(draw: st.DrawFn, members: st.SearchStrategy[tuple[str, str]]) -> str:
    """An object of `members`, which are (key, text of the value)."""
    parts = []
    for key, text in draw(st.lists(members, max_size=6)):
        name = json.dumps(key, ensure_ascii=draw(st.booleans()))
        parts.append(draw(SPACES) + name + draw(SPACES) + ":" + draw(SPACES) + text + draw(SPACES))
    return draw(SPACES) + "{" + draw(SPACES) + ",".join(parts) + "}" + draw(SPACES)


def layouts() -> st.SearchStrategy[str]:
    return objects(st.tuples(KEYS, values()))
