"""Prompts as what is new in them: the parent gives back the rest, and it is the best one known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.capture.reply import Ids
from gyre.proxy.log.record.delta import BLOCK, DeltaIndex, Match, RowKey

LENGTHS = st.sampled_from([0, 1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])


@dataclass(frozen=True)
class Step:
    """One call: it goes on from `base`, of which it keeps `kept` per mille."""

    base: int
    kept: int
    suffix: int
    output: int
    seed: int
    execution: str = "e1"


STEPS = st.lists(
    st.builds(
        Step,
        base=st.integers(0, 20),
        kept=st.sampled_from([0, 3, 500, 999, 1000, 1000, 1000]),
        suffix=LENGTHS,
        output=LENGTHS,
        seed=st.integers(0, 3),
        execution=st.sampled_from(["e1", "e1", "e1", "e2"]),
    ),
    max_size=12,
)


@dataclass
class Known:
    """What the index was told, as whole lists."""

    index: DeltaIndex = field(default_factory=DeltaIndex)
    rows: dict[str, dict[RowKey, tuple[Ids, Ids]]] = field(default_factory=lambda: {"e1": {}, "e2": {}})

    def prompt_of(self, step: Step) -> Ids:
        wholes = [np.concatenate(row) for row in self.rows[step.execution].values()]
        base = wholes[step.base % len(wholes)] if wholes else random_ids(9, 0)
        kept = base[: len(base) * step.kept // 1000]
        return np.concatenate([kept, random_ids(step.suffix, step.seed)])

    def add(self, execution: str, match: Match, prompt: Ids, output: Ids) -> None:
        rows = self.rows[execution]
        key = RowKey(f"c{len(rows)}", 0, 0)
        rows[key] = prompt, output
        self.index.add(execution, key, match, output.tobytes(), [])

    def best(self, execution: str, prompt: Ids) -> int:
        """The longest beginning that a row of the execution shares up to one of its marks."""
        return max((best_mark(*row, prompt) for row in self.rows[execution].values()), default=0)


def best_mark(prompt: Ids, output: Ids, other: Ids) -> int:
    whole = np.concatenate([prompt, output])
    same = common(whole, other)
    marks = {len(prompt), len(whole), *range(0, len(whole) + 1, BLOCK)}
    return max((mark for mark in marks if mark <= same), default=0)


def common(one: Ids, other: Ids) -> int:
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def random_ids(count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, 150_000, count, np.int32)


@settings(max_examples=150)
@given(STEPS)
def test_parent_and_suffix_give_back_the_prompt_and_share_the_most(steps: list[Step]) -> None:
    known = Known()
    for step in steps:
        prompt = known.prompt_of(step)
        match = known.index.match(step.execution, prompt.tobytes())
        assert match.shared == known.best(step.execution, prompt)
        if match.parent:
            whole = np.concatenate(known.rows[step.execution][match.parent])
            assert (whole[: match.shared] == prompt[: match.shared]).all()
        assert match.digest == xxhash.xxh3_128_digest(prompt.astype("<i4").tobytes())
        known.add(step.execution, match, prompt, random_ids(step.output, step.seed + 10))


def test_a_prompt_that_extends_an_answer_shares_all_of_it() -> None:
    known = Known()
    prompt, output = random_ids(5000, 1), random_ids(77, 2)
    known.add("e1", known.index.match("e1", prompt.tobytes()), prompt, output)
    match = known.index.match("e1", np.concatenate([prompt, output, random_ids(9, 3)]).tobytes())
    assert match.parent == RowKey("c0", 0, 0)
    assert match.shared == 5077


def test_a_prompt_that_leaves_an_earlier_one_in_its_middle_shares_all_but_the_last_block() -> None:
    known = Known()
    prompt = random_ids(10 * BLOCK, 1)
    known.add("e1", known.index.match("e1", prompt.tobytes()), prompt, random_ids(5, 2))
    match = known.index.match("e1", np.concatenate([prompt[: 7 * BLOCK + 500], random_ids(99, 3)]).tobytes())
    assert match.shared == 7 * BLOCK


def test_executions_share_nothing_with_each_other() -> None:
    known = Known()
    prompt = random_ids(100, 1)
    known.add("e1", known.index.match("e1", prompt.tobytes()), prompt, random_ids(5, 2))
    assert known.index.match("e2", prompt.tobytes()).parent is None


def test_of_several_choices_the_one_that_was_continued_is_the_parent() -> None:
    index, prompt = DeltaIndex(), random_ids(40, 1)
    match = index.match("e1", prompt.tobytes())
    outputs = [random_ids(8, seed) for seed in (2, 3, 4)]
    for choice, output in enumerate(outputs):
        index.add("e1", RowKey("c", 0, choice), match, output.tobytes(), [])
    found = index.match("e1", np.concatenate([prompt, outputs[1], random_ids(3, 5)]).tobytes())
    assert (found.parent, found.shared) == (RowKey("c", 0, 1), 48)


def test_memory_is_bounded_and_the_idle_execution_goes_first() -> None:
    index = DeltaIndex(most=50)
    prompts = {f"e{number}": random_ids(3 * BLOCK, number) for number in range(40)}
    for name, prompt in prompts.items():
        index.add(
            name, RowKey(name, 0, 0), index.match(name, prompt.tobytes()), random_ids(4, 1).tobytes(), []
        )
        index.add("busy", RowKey(name, 0, 0), index.match("busy", prompt.tobytes()), None, [])
    known = [name for name, prompt in prompts.items() if index.match(name, prompt.tobytes()).parent]
    assert known == list(prompts)[-len(known) :] and 0 < len(known) < 40
    assert index.match("busy", prompts["e39"].tobytes()).parent


def addresses(count: int) -> list[bytes]:
    return [b"%016d" % number for number in range(count)]


def test_without_ids_the_parent_has_the_longest_common_list_of_messages() -> None:
    index = DeltaIndex()
    for count in (2, 4, 6):
        index.add("e1", RowKey(f"c{count}", 0, 0), None, None, addresses(count))
    assert index.match_messages("e1", [*addresses(5), b"other"]) == RowKey("c6", 0, 0)
    assert index.match_messages("e1", [*addresses(4), b"other"]) == RowKey("c4", 0, 0)
    assert index.match_messages("e1", [b"other", *addresses(4)]) is None
    assert index.match_messages("e2", addresses(4)) is None


def test_shared_messages_are_those_that_the_parent_begins_with_too() -> None:
    index, parent = DeltaIndex(), RowKey("c", 0, 0)
    index.add("e1", parent, None, None, addresses(4))
    assert index.shared_messages("e1", parent, [*addresses(3), b"other", *addresses(9)[3:]]) == 3
    assert index.shared_messages("e1", parent, addresses(9)) == 4
    assert index.shared_messages("e1", RowKey("unknown", 0, 0), addresses(9)) == 0
    assert index.shared_messages("e1", None, addresses(9)) == 0
