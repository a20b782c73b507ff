"""Which backend takes a call."""

from __future__ import annotations

from collections import Counter

from gyre.proxy.commands import DrainBackend, RemoveBackend, SetVersion
from gyre.proxy.router import Router
from gyre.proxy.serve.shared import Shared
from gyre.proxy.settings import Backend

MANY = [f"e{n}" for n in range(600)]


def router(*names: str, ready: bool = True) -> Router:
    made = Router([Backend(url=f"http://{name}", name=name) for name in names])
    for state in made.backends.values():
        state.ready = ready
    return made


def homes(made: Router) -> dict[str, str]:
    """Where each execution goes when nothing is open."""
    return {name: picked.name for name in MANY if (picked := made.pick(name))}


def test_nothing_is_picked_before_a_backend_has_answered() -> None:
    made = router("b1", ready=False)
    assert made.pick("e1") is None
    assert not made.any_ready()
    assert made.why_not() == "`b1` has not answered yet"
    assert Router().why_not() == "there are no backends"


def test_one_that_drains_from_the_start_is_taken_in_when_that_is_said() -> None:
    shared = Shared([Backend(url="http://b1", name="b1", draining=True)])
    assert shared.router.why_not() == "`b1` is draining"
    shared.apply(DrainBackend("b1", False))
    later = Shared([])
    for command in shared.replay():
        later.apply(command)
    assert not later.router.backends["b1"].draining


def test_an_execution_stays_with_its_backend_and_executions_spread() -> None:
    first, second = homes(router("b1", "b2", "b3")), homes(router("b3", "b1", "b2"))
    assert first == second
    assert min(Counter(first.values()).values()) > len(MANY) / 3 * 0.75


def test_a_backend_that_comes_or_goes_moves_only_executions_that_it_concerns() -> None:
    three, two = homes(router("b1", "b2", "b3")), homes(router("b1", "b2"))
    moved = {name for name in MANY if three[name] != two[name]}
    assert moved == {name for name in MANY if three[name] == "b3"}


def test_an_overloaded_backend_gives_way_to_the_next() -> None:
    made = router("b1", "b2")
    home = made.backends[homes(made)["e1"]]
    home.open = 10
    other = made.pick("e1")
    assert other is not None and other is not home
    other.open = 10
    assert made.pick("e1") is home


def test_with_calls_spread_by_load_no_backend_has_much_more_than_the_mean() -> None:
    made = router("b1", "b2", "b3", "b4")
    for n in range(400):
        picked = made.pick("one hot execution" if n % 2 else f"e{n}")
        assert picked is not None
        picked.open += 1
    assert max(b.open for b in made.backends.values()) <= 126


def test_excluded_and_draining_backends_are_not_picked() -> None:
    made = router("b1", "b2")
    made.apply(DrainBackend("b1", True))
    assert set(homes(made).values()) == {"b2"}
    assert made.pick("e1", exclude={"b2"}) is None
    assert made.why_not() == "`b1` is draining"
    made.apply(DrainBackend("b1", False))
    assert set(homes(made).values()) == {"b1", "b2"}


def test_a_problem_is_given_as_the_reason() -> None:
    made = router("b1", ready=False)
    made.backends["b1"].problem = "connection refused"
    assert made.why_not() == "`b1` connection refused"


def test_versions_are_set_for_one_or_for_all() -> None:
    made = router("b1", "b2")
    made.apply(SetVersion(None, "1"))
    made.apply(SetVersion("b2", "2"))
    assert {b.name: b.version for b in made.backends.values()} == {"b1": "1", "b2": "2"}


def test_commands_for_unknown_backends_change_nothing() -> None:
    made = router("b1")
    for command in (DrainBackend("b9", True), RemoveBackend("b9"), SetVersion("b9", "1")):
        made.apply(command)
    assert list(made.backends) == ["b1"]
    assert (made.backends["b1"].draining, made.backends["b1"].version) == (False, None)
    made.apply(RemoveBackend("b1"))
    assert made.pick("e1") is None


def test_a_backend_added_again_has_to_answer_first() -> None:
    made = router("b1")
    made.add(Backend(url="http://b1", name="b1", version="5"))
    assert made.pick("e1") is None
    assert made.backends["b1"].version == "5"
