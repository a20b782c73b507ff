"""What happens in an execution, drawn at random, and acted out."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.trees.world import changes
from tests.trees.world.agent import Agent
from tests.trees.world.compaction import Family, compact, remind
from tests.trees.world.delegation import Mode, come_back, delegate, report
from tests.trees.world.labels import Headers
from tests.trees.world.plan import CONDITIONS, FAILED, LOST, PLAIN, Plan
from tests.trees.world.template import Style
from tests.trees.world.world import Harness, World

QUICK = settings(
    max_examples=200,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
FEW = settings(QUICK, max_examples=50)
_DEEPEST = 2
KINDS = (
    *("work", "work", "talk", "blocking", "background", "forked", "finish", "compact", "compact"),
    *("clear", "tools", "drop", "aborted", "recover", "resume", "canned", "side"),
)


class Action(NamedTuple):
    kind: str
    who: int = 0
    """Which of the agents that are at work."""
    pick: int = 0
    """Whatever else there is to choose."""
    plan: Plan = PLAIN


class Story(NamedTuple):
    actions: tuple[Action, ...]
    seed: int = 0
    style: Style = Style()
    harness: Harness = Harness()
    reasons: bool = False
    breaks_words: bool = False
    killed: bool = False
    """The harness dies in its last call."""

    def act(self) -> World:
        world = World(Random(self.seed), self.style, self.harness, self.reasons, self.breaks_words)
        return Stage(world).play(self)


class Stage:
    """The agents at work."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at_work = [world.main]

    def play(self, story: Story) -> World:
        for action in story.actions:
            self.act(self.at_work[action.who % len(self.at_work)], action)
        for child in reversed(self.at_work[1:]):
            self.finish(child)
        self._read_all()
        if story.killed:
            changes.give_up(self.world, self.world.main, "gone")
        else:
            self.world.turn(self.world.main, self.world.model.talk())
        return self.world

    def act(self, agent: Agent, action: Action) -> None:
        world, pick, plan = self.world, action.pick, action.plan
        match action.kind:
            case "work":
                world.work(agent, 1 + pick % 2, plan)
            case "talk":
                world.turn(agent, world.model.talk(), plan)
            case "blocking" | "background" | "forked":
                self.give_work(agent, Mode(action.kind), pick, plan)
            case "finish":
                self.finish(agent)
            case "compact":
                self.compact(agent, pick, plan)
            case "clear":
                changes.clear_results(world, agent)
            case "tools":
                changes.change_tools(world, agent)
            case "drop":
                if agent.last is None:
                    world.work(agent)
                changes.drop_answer(world, agent)
            case "aborted":
                changes.insert_aborted_call(world, agent)
            case "recover":
                changes.recover(world, agent)
            case "resume":
                changes.resume(world, agent)
            case "canned":
                changes.insert_canned_answer(world, agent)
            case "side":
                changes.side_call(world, agent, plan.without_twins())
            case _:
                raise ValueError(action.kind)

    def compact(self, agent: Agent, pick: int, plan: Plan) -> None:
        families = list(Family)
        family = families[pick % len(families)]
        if pick % 3 == 0 and family is Family.CLAUDE:
            changes.give_up(self.world, agent, "too_long")
        on_summary = pick % 2 == 0
        compact(self.world, agent, family, plan if on_summary else PLAIN, PLAIN if on_summary else plan)
        if family is Family.QWEN:
            remind(agent)
            self.world.work(agent)

    def give_work(self, agent: Agent, mode: Mode, pick: int, plan: Plan) -> None:
        if agent.depth >= _DEEPEST:
            self.world.work(agent, plan=plan)
            return
        same = pick == 7 and mode is not Mode.FORKED
        children = delegate(self.world, agent, mode, 1 + pick % 2, same, plan)
        if mode is Mode.BLOCKING:
            for child in children:
                self.live(child, pick % 3)
            come_back(self.world, agent, children)
        else:
            self.at_work += children
        self.world.work(agent)

    def live(self, child: Agent, turns: int) -> None:
        """What a child does while its parent waits."""
        random = self.world.random
        kinds = ("work", "work", "work", "compact", "blocking", "canned", "aborted")
        for _ in range(turns):
            plan = Plan(tries=(random.choice(FAILED),)) if random.random() < 0.2 else PLAIN
            self.act(child, Action(random.choice(kinds), pick=random.randrange(10), plan=plan))
        self.say_last(child)

    def finish(self, agent: Agent) -> None:
        """A background child says its last words."""
        if agent.depth == 0:
            self.world.work(agent)
            return
        self.say_last(agent)
        self.at_work.remove(agent)
        report(agent)

    def say_last(self, child: Agent) -> None:
        self.world.turn(child, self.world.model.talk())
        self.world.findings.append(child.final)

    def _read_all(self) -> None:
        """The main agent digests what its children reported after its last call."""
        main = self.world.main
        while main.inbox:
            main.ready = max(main.ready, min(at for at, _ in main.inbox))
            self.world.turn(main, self.world.model.talk())


def plans() -> st.SearchStrategy[Plan]:
    """Mostly nothing special."""
    failed = st.lists(st.sampled_from(FAILED), max_size=2).map(tuple)
    lost = st.one_of(st.just(()), st.sampled_from(LOST).map(lambda name: (name,)))
    tries = st.tuples(failed, lost).map(lambda pair: (*pair[0], *pair[1]))
    special = st.one_of(
        tries.map(lambda names: Plan(tries=names)),
        st.integers(2, 3).map(lambda n: Plan(choices=n)),
        st.sampled_from(CONDITIONS).map(lambda name: Plan(condition=name)),
        st.just(Plan(resampled_after=True)),
        st.just(Plan(delivered_again=True)),
    )
    return st.one_of(st.just(PLAIN), special)


def actions() -> st.SearchStrategy[Action]:
    return st.builds(Action, st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 9), plans())


def styles() -> st.SearchStrategy[Style]:
    reasoning = st.sampled_from(("keep", "strip", "strip_before_user"))
    return st.builds(Style, reasoning, st.booleans(), st.booleans(), st.booleans())


def harnesses(labelled: bool) -> st.SearchStrategy[Harness]:
    headers = [h for h in Headers if h is not Headers.NONE or not labelled]
    echoes = st.sampled_from(("always", "never", "tools"))
    return st.builds(Harness, st.sampled_from(headers), st.booleans(), echoes)


def stories(labelled: bool = False, max_actions: int = 8) -> st.SearchStrategy[Story]:
    """`labelled`: of harnesses that name their agents."""
    return st.builds(
        Story,
        st.lists(actions(), min_size=1, max_size=max_actions).map(tuple),
        st.integers(0, 1 << 16),
        styles(),
        harnesses(labelled),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )
