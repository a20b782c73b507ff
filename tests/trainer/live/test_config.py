"""A run file: what it may say, what is refused in which words, and that a resolved one says the same."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.elastic.engine.settings import Device, Dtype
from gyre.trainer.config import load_config
from gyre.trainer.errors import TrainError
from gyre.trainer.live.config import load_run, public_table, require_files, run_table, run_toml
from gyre.trainer.live.options import options_of
from gyre.trainer.live.settings import (
    EngineKind,
    EngineTable,
    EvaluationTable,
    HarnessTable,
    InFlight,
    LimitTable,
    ReportTable,
    RolloutTable,
    RunSettings,
    SamplingTable,
    TaskTable,
    TimeoutTable,
    TreeTable,
)
from gyre.trainer.rollout.harness import Harness
from gyre.trainer.settings import LossSettings, OptimizerSettings, PassName, TrainSettings
from gyre.trainer.tables import tables_in
from gyre.treebuilder.options import CAP, Rule

SMALL = """
model = "tiny"
{top}
[harness]
command = ["python3", "./agent.py", "{{base_url}}"]
[[tasks]]
folder = "tasks"
[rollout]
batches = 3
{rest}
"""


def text(rest: str = "", top: str = "") -> str:
    return SMALL.format(top=top, rest=rest)


def load(folder: Path, toml: str, **flags: Any) -> RunSettings:
    file = folder / "run.toml"
    file.write_text(toml)
    return load_run(file, flags)


def refusal(folder: Path, toml: str) -> str:
    with pytest.raises(TrainError) as caught:
        load(folder, toml)
    assert str(folder / "run.toml") in caught.value.message
    return f"{caught.value.message} | {caught.value.hint}"


# -------------------------------------------------------------------------------------------------- reading


def test_a_small_file_leaves_everything_else_as_usual(tmp_path: Path) -> None:
    settings = load(tmp_path, text())
    assert (settings.model, settings.out) == ("tiny", str(tmp_path / "runs" / "run"))
    assert settings.harness == HarnessTable(command=("python3", str(tmp_path / "agent.py"), "{base_url}"))
    assert settings.tasks == (TaskTable(folder=str(tmp_path / "tasks")),)
    assert settings.rollout == RolloutTable(batches=3)
    assert (settings.engine, settings.train) == (EngineTable(), TrainSettings())


def test_paths_are_relative_to_the_file_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "run.toml"
    file.parent.mkdir()
    more = '[[evaluation.tasks]]\nfolder = "/held/out"\n[train.loss]\nkl = 0.1\nreference = "../reference"\n'
    top = 'out = "../out"\nchat_template = "a/./b.jinja"'
    file.write_text(text(more, top).replace('"tiny"', '"../models/m"'))
    monkeypatch.chdir(tmp_path)
    settings = load_run(Path("deep/run.toml"))
    assert settings.model == str(tmp_path / "models" / "m")
    assert settings.out == str(tmp_path / "out")
    assert settings.chat_template == str(tmp_path / "deep" / "a" / "b.jinja")
    assert settings.evaluation.tasks[0].folder == "/held/out"
    assert settings.train.loss.reference == str(tmp_path / "reference")


def test_a_home_is_where_the_shell_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/at/home")
    assert load(tmp_path, text(top='out = "~/run"')).out == "/at/home/run"


def test_only_words_that_begin_as_paths_are_paths(tmp_path: Path) -> None:
    toml = text().replace('"{base_url}"', '"../b", "c/d", ".", "--at=./x"')
    found = load(tmp_path, toml).harness.command[2:]
    assert found == (str(tmp_path.parent / "b"), "c/d", ".", "--at=./x")


def test_the_program_of_a_preset_may_be_a_path_or_a_name(tmp_path: Path) -> None:
    for program, found in (("bin/claude", str(tmp_path / "bin" / "claude")), ("claude", "claude")):
        toml = text().replace("[harness]", f'[harness]\npreset = "claude-code"\nprogram = "{program}"')
        assert load(tmp_path, toml).harness.program == found


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    flags = {"out": "/elsewhere", "unsafe_local": True, "rollout.batches": 1, "score": None}
    settings = load(tmp_path, text(), **flags)
    assert (settings.out, settings.unsafe_local, settings.rollout.batches) == ("/elsewhere", True, 1)


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("burts = 2", "unknown key `rollout.burts` | did you mean `rollout.burst`?"),
        ("lr = 1e-3", "unknown key `rollout.lr` | did you mean `train.optimizer.lr`?"),
        ("score = 'x'", "unknown key `rollout.score` | did you mean `score`, before the first table?"),
        ("seed = 1", "did you mean `trees.seed`, `evaluation.seed` or `train.seed`?"),
        ("temprature = 1", "did you mean `sampling.temperature`?"),
        ("frobnicate = 1", "known keys: group_size, batches, look_ahead"),
        ("[sampel]\n", "unknown table `[sampel]` | did you mean `[sampling]`?"),
        ("[optimizer]\nlr = 1", "unknown table `[optimizer]` | did you mean `[train.optimizer]`?"),
        ("[[task]]\nfolder = 'a'", "unknown table `[[task]]` | did you mean `[[tasks]]`?"),
        ("[train]\nlearning = 1", "unknown key `train.learning`"),
        ("[train]\npas = 1", "did you mean `train.pass`?"),
        ("[[tasks]]\nfoldr = 'a'", "`tasks.foldr` (`[[tasks]]` number 2) | did you mean `tasks.folder`?"),
        ("[[tasks]]\nweight = 2.0", "`tasks.folder` is missing (`[[tasks]]` number 2)"),
        ("[[tasks]]\nfolder = 'b'\nweight = 0", "`tasks.weight` is 0: expected `float` > 0"),
        ("[[evaluation.tasks]]\nfolder = 3", "`evaluation.tasks.folder` is 3: expected `str`, got `int`"),
        ("[evaluation]\ntasks = 'held-out'", "a list of tables | begin each with `[[evaluation.tasks]]`"),
        ("[evaluation.tasks]\nfolder = 'a'", "`evaluation.tasks` is one table, and is a list of tables"),
        ("[evaluation]\ntasks = ['a']", '`evaluation.tasks` is "a", and is a table'),
        ("[[sampling]]\ntemperature = 1.0", "and is a table | begin it with `[sampling]`"),
        ("group_size = 'many'", '`rollout.group_size` is "many": expected `int`, got `str`'),
        ("look_ahead = inf", "`rollout.look_ahead` is not finite"),
        ("look_ahead = -1", "`rollout.look_ahead` is -1: expected `float` >= 0"),
        ("group_size = 1", "compared with the others of its group | give at least 2"),
        ("[sampling]\ntemperature = 0", "`sampling.temperature` is 0: expected `float` > 0"),
        ("[trees]\nselect = 'every'", '`trees.select` is "every" | one of qwengyre, paper, coverage, all'),
        ("[trees]\nselect = 'all'\ncap = 2", "`trees.cap` is not used"),
        ("[limits]\ntime = 'soon'", "`limits.time`: `soon` is no time | give one like 90s, 30m, 2h"),
        ("[limits]\nworkspace = '8 XB'", "`limits.workspace`: `8 XB` is no size"),
        ("[limits]\nmemory = ''", "`limits.memory` is empty"),
        ("[timeouts]\nrun = '0'", "`timeouts.run`: `0` has to be more than 0"),
        ("[timeouts]\nscorer = 90", "`timeouts.scorer` is 90: expected `str | null`"),
        ("[train]\nepochs = 2", "`train.epochs` is for training on stored trees | leave it out: `rollout.b"),
        ("[train]\nmax_updates = 2", "`train.max_updates` is for"),
        ("[train.checkpoint]\nevery = 2", "`train.checkpoint.every` is for"),
        ("[train.loss]\nreference = 'm'", "`train.loss.kl` is 0"),
        ("[train.optimizer]\nlr = nan", "`train.optimizer.lr` is"),
        ("[evaluation]\nevery = 2", "`evaluation.every` is set, and there is nothing to evaluate on"),
        ("[evaluation]\ngreedy = true", "`evaluation.greedy` is set"),
        ("[[evaluation.tasks]]\nfolder = './tasks/'", "stands in `[[tasks]]` and in `[[evaluation.tasks]]`"),
        ("[[evaluation.tasks]]\nfolder = 'a'\nweight = 2.0", "`evaluation.tasks.weight` is not used"),
        ("[[tasks]]\nfolder = 'x/../tasks'", "twice | give it a `weight` instead"),
        ("[engine]\nkind = 'vlm'", '`engine.kind` is "vlm" | one of embedded, vllm, sglang'),
        ("[engine]\nurls = ['http://a:1']", "`engine.urls` is for vLLM and SGLang"),
        ("[engine]\ncommand = ['vllm']", "`engine.command` is for vLLM and SGLang"),
        ("[engine]\nkind = 'vllm'", "nothing says where it is | `urls = "),
        ("[engine]\nkind = 'sglang'\ncommand = ['x', '{port}']", "`engine.command` has no `{model}`"),
        ("[engine]\nkind = 'vllm'\nurls = ['http://a']\ncommand = ['b']", "are both set"),
        (
            "[engine]\ntransfer = 'nccl'",
            "`engine.kind` is `embedded` | only vLLM takes weights through memory",
        ),
        ("[engine]\nkind = 'vllm'\nurls = ['http://a']\ncount = 2", "`engine.count` is for engines that are"),
        ("[engine]\nkind = 'vllm'\nurls = ['http://a']\nslots = 2", "`engine.slots` is for the embedded"),
        ("[engine]\nkind = 'vllm'\nurls = ['localhost:8000']", "`localhost:8000` is no URL"),
        ("[engine]\nkind = 'vllm'\nurls = ['http://a:99999']", "is no URL"),
        ("[engine]\nkind = 'vllm'\nurls = ['http://a', 'http://a']", "names an engine twice"),
        ("[engine]\nkind = 'vllm'\ncommand = ['x', '{port}', '{model}']\nslots = 2", "for the embedded"),
        ("[engine]\ndtype = 'fp16'", '`engine.dtype` is "fp16" | one of fp32, bf16'),
        ("[engine]\ndevice = 'gpu'", "one of auto, cpu, cuda, mps"),
        ("[engine]\nthreads = 0", "`engine.threads` is 0"),
        ("[harness.env]\n'A=B' = 'c'", "`A=B` is no name of a variable"),
        ('[report]\nwandb = "a\\u0000b"', "`report.wandb` has a NUL in it"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_it(tmp_path: Path, rest: str, told: str) -> None:
    _, _, below = rest.partition("[harness.env]")
    toml = text(rest) if not below else text().replace("[[tasks]]", f"[harness.env]{below}\n[[tasks]]", 1)
    assert told in refusal(tmp_path, toml)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('model = "tiny"', "", "`model` is missing | set it before the first table"),
        ('model = "tiny"', 'model = ""', "`model` is empty"),
        ('model = "tiny"', 'modle = "tiny"', "unknown key `modle` | did you mean `model`?"),
        ('model = "tiny"', 'model = "tiny"\ntemperature = 1', "did you mean `sampling.temperature`?"),
        ("batches = 3", "", "`rollout.batches` is missing | set it in `[rollout]`"),
        ("[rollout]\nbatches = 3", "", "the table `[rollout]` is missing | it has to say `batches`"),
        ('[[tasks]]\nfolder = "tasks"', "", "the table `[[tasks]]` is missing | it has to say `folder`"),
        ('[[tasks]]\nfolder = "tasks"', "", "the table `[[tasks]]` is missing"),
        ("[[tasks]]", "[tasks]", "`tasks` is one table, and is a list of tables"),
        ("[harness]", "[harness]\nprogram = 'x'", "`harness.program` is a preset's executable"),
        ("[harness]", "[harness]\npreset = 'claude'", "one of claude-code, codex"),
        ('command = ["python3"', 'command = [" "', "begins with an empty word"),
        ("command = [", "keep_env = [", "says neither `preset` nor `command`"),
    ],
)
def test_what_a_file_cannot_be_without(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in text()
    assert told in refusal(tmp_path, text().replace(old, new))


@pytest.mark.parametrize("source", ["urls = ['http://a']", "command = ['x', '{port}', '{model}']"])
def test_a_template_has_to_reach_the_engine(tmp_path: Path, source: str) -> None:
    engine = f"[engine]\nkind = 'vllm'\n{source}"
    assert "`chat_template` is set, and `engine." in refusal(tmp_path, text(engine, "chat_template = 'a'"))
    good = engine.replace("{model}", "{model}, {chat_template}")
    if "command" in source:
        assert load(tmp_path, text(good, "chat_template = 'a'")).chat_template == str(tmp_path / "a")


def test_what_a_run_reads_and_starts_has_to_be_there(tmp_path: Path) -> None:
    def told(toml: str) -> str:
        with pytest.raises(TrainError) as caught:
            require_files(load(tmp_path, toml))
        return f"{caught.value.message} | {caught.value.hint}"

    assert f"`tasks`: there is no folder `{tmp_path / 'tasks'}`" in told(text())
    (tmp_path / "tasks").mkdir()
    require_files(load(tmp_path, text()))
    hub = told(text().replace('"tiny"', '"Org/Model"'))
    assert "hf download Org/Model --local-dir Model" in hub
    assert "there is no file" in told(text(top="chat_template = 'a.jinja'"))
    assert "`evaluation.tasks`: there is no folder" in told(text("[[evaluation.tasks]]\nfolder = 'b'"))
    assert "`no-such-program` is not installed" in told(text().replace("python3", "no-such-program"))
    engine = "\n[engine]\nkind = 'vllm'\ncommand = ['no-such-engine', '{model}', '{port}']\n"
    assert "`no-such-engine` of `engine.command` is not installed" in told(text() + engine)
    absent = '[harness]\npreset = "codex"\nprogram = "./codex"'
    assert "install it: npm i -g" in told(text().replace("[harness]", absent))


def test_values_of_variables_are_not_for_everybody(tmp_path: Path) -> None:
    settings = load(tmp_path, text().replace("[harness]", "[harness]\nenv = { KEY = 'hunter2' }"))
    table = public_table(settings)
    assert table["harness"]["env"] == ["KEY"] and table["rollout"]["batches"]
    assert "hunter2" not in str(table) and "hunter2" in str(run_table(settings))


def test_no_tasks_at_all(tmp_path: Path) -> None:
    toml = text(top="tasks = []").replace('[[tasks]]\nfolder = "tasks"', "")
    assert "there are no tasks" in refusal(tmp_path, toml)


def test_a_file_that_is_not_there_and_one_that_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot read `nowhere"):
        load_run(Path("nowhere.toml"))
    assert "is not TOML" in refusal(tmp_path, "model = ")


def test_the_offline_command_takes_its_table_of_a_run_file(tmp_path: Path) -> None:
    toml = text('[limits]\ncalls = 3\n[train]\npass = "dfs"\nepochs = 3\n')
    (tmp_path / "run.toml").write_text(toml)
    settings = load_config(tmp_path / "run.toml", {})
    assert (settings.tree_pass, settings.epochs) == (PassName.DFS, 3)
    (tmp_path / "run.toml").write_text(toml + "[trian]\n")
    with pytest.raises(TrainError, match=r"unknown table `\[trian\]`"):
        load_config(tmp_path / "run.toml", {})


# -------------------------------------------------------------------------------------------- how it is run


def test_executions_are_run_as_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_TEST_KEPT", "kept")
    more = "[limits]\ntime = '1m30s'\nworkspace = '1KB'\nmemory = '2MB'\ncalls = 5\n"
    more += "context = 512\nprocesses = 9\n"
    toml = text(more + "[timeouts]\nscorer = '5'\n[sampling]\ntemperature = 0.5", top="score = 'echo 1'")
    toml = toml.replace("[harness]", "[harness]\nkeep_env = ['GYRE_TEST_KEPT', 'HOME']\nenv = {HOME = '/x'}")
    options = options_of(load(tmp_path, toml), tmp_path, model="m", context=2048, confined=True)
    assert (options.timeout_s, options.score_timeout_s, options.score) == (90, 5, "echo 1")
    assert (options.workspace_limit, options.memory, options.processes) == (1024, 2 << 20, 9)
    assert (options.context, options.model, options.confined) == (512, "m", True)
    assert options.env == {"GYRE_TEST_KEPT": "kept", "HOME": "/x"}
    assert options.allowance and (options.allowance.calls, options.allowance.tokens) == (5, None)
    assert options.pin and (options.pin.temperature, options.pin.top_p) == (0.5, 1.0)


def test_an_engine_that_takes_less_than_the_limit_says_so(tmp_path: Path) -> None:
    settings = load(tmp_path, text("[limits]\ncontext = 4096"))
    found = [options_of(settings, tmp_path, model="", context=size, confined=False) for size in (512, None)]
    assert [each.context for each in found] == [512, 4096]
    assert found[0].allowance is None


def test_a_variable_that_is_to_be_kept_has_to_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GYRE_TEST_KEPT", raising=False)
    toml = text().replace("[harness]", "[harness]\nkeep_env = ['GYRE_TEST_KEPT']")
    with pytest.raises(TrainError, match="names `GYRE_TEST_KEPT`, which is not set"):
        options_of(load(tmp_path, toml), tmp_path, model="", context=None, confined=False)


# ---------------------------------------------------------------------------------------- written and read


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
NAMES = TEXTS.map(lambda name: name.replace("=", "-"))
PATHS = TEXTS.map(lambda name: os.path.abspath(f"/a/{name}"))
ENVS = st.dictionaries(
    NAMES, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=2
)
COUNTS, SEEDS = st.integers(1, 1 << 40), st.integers(0, 1 << 40)
AMOUNTS = st.floats(0, exclude_min=True, allow_infinity=False)
TIMES, SIZES = st.sampled_from(("90s", "1h30m", "0.5")), st.sampled_from(("8GB", "500 MB", "1"))
WORDS = TEXTS.filter(lambda word: not word.startswith(("./", "../")))


def made(kind: type[msgspec.Struct], **fields: Any) -> st.SearchStrategy[Any]:
    """With each of the fields drawn, or left as it is usually."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda drawn: kind(**drawn))


EMBEDDED = made(
    EngineTable,
    count=COUNTS,
    in_flight=st.sampled_from(InFlight),
    slots=COUNTS,
    threads=COUNTS,
    kv_memory=COUNTS,
    device=st.sampled_from(Device),
    dtype=st.sampled_from(Dtype),
    start_timeout=TIMES,
)
SERVERS = st.builds(
    EngineTable,
    kind=st.sampled_from((EngineKind.VLLM, EngineKind.SGLANG)),
    command=st.lists(WORDS).map(lambda words: (*words, "{model}", "{port}", "{chat_template}")),
    env=ENVS,
    count=COUNTS,
    in_flight=st.sampled_from(InFlight),
    publish_timeout=TIMES,
)
HARNESSES = st.builds(
    HarnessTable,
    preset=st.sampled_from(Harness),
    program=st.none() | PATHS,
    command=st.lists(WORDS, max_size=2).map(tuple),
    env=ENVS,
    keep_env=st.lists(NAMES, max_size=2).map(tuple),
)


def lists(folder: str, weights: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[TaskTable, ...]]:
    return st.lists(weights, min_size=1, max_size=3).map(
        lambda drawn: tuple(
            TaskTable(folder=f"/{folder}/{place}", weight=weight) for place, weight in enumerate(drawn)
        )
    )


@st.composite
def settings(draw: st.DrawFn) -> RunSettings:
    loss = draw(made(LossSettings, clip_low=st.floats(0, 0.9), kl=AMOUNTS, importance_cap=AMOUNTS))
    train = made(
        TrainSettings,
        seed=SEEDS,
        groups_per_batch=COUNTS,
        tree_pass=st.sampled_from(PassName),
        recompute=st.booleans(),
        train=st.lists(TEXTS).map(tuple),
        loss=st.just(loss),
        optimizer=made(OptimizerSettings, lr=AMOUNTS, betas=st.tuples(st.floats(0, 0.9), st.floats(0, 0.9))),
    )
    held_out = draw(st.just(()) | lists("held-out", st.just(1.0)))
    evaluation = made(EvaluationTable, episodes=COUNTS, every=SEEDS, greedy=st.booleans(), seed=SEEDS)
    rollout = st.builds(
        RolloutTable,
        batches=COUNTS,
        group_size=st.integers(2, 64),
        look_ahead=st.just(0.0) | AMOUNTS,
        burst=COUNTS,
    )
    trees = made(TreeTable, cap=COUNTS, select=st.sampled_from(Rule), seed=SEEDS)
    limits = made(LimitTable, time=TIMES, calls=COUNTS, context=COUNTS, workspace=SIZES, memory=SIZES)
    return RunSettings(
        model=draw(st.sampled_from(("tiny", "smollm2")) | PATHS),
        chat_template=draw(st.none() | PATHS),
        out=draw(PATHS),
        unsafe_local=draw(st.booleans()),
        score=draw(st.none() | TEXTS),
        engine=draw(EMBEDDED | SERVERS),
        harness=draw(HARNESSES),
        tasks=draw(lists("tasks", AMOUNTS)),
        rollout=draw(rollout),
        limits=draw(limits),
        timeouts=draw(made(TimeoutTable, scorer=TIMES, run=TIMES)),
        sampling=draw(made(SamplingTable, temperature=AMOUNTS)),
        trees=draw(trees.filter(lambda drawn: drawn.select is not Rule.ALL or drawn.cap == CAP)),
        evaluation=msgspec.structs.replace(draw(evaluation), tasks=held_out)
        if held_out
        else EvaluationTable(),
        report=draw(made(ReportTable, wandb=TEXTS, trackio=TEXTS)),
        train=draw(train),
    )


@given(settings())
def test_a_resolved_file_says_the_same_wherever_it_lies(tmp_path_factory: Any, resolved: RunSettings) -> None:
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    file.write_text(run_toml(resolved), encoding="utf-8")
    assert load_run(file) == resolved


@pytest.mark.parametrize("odd", ["\x7f", "\x01\n\t", 'a"b\\c', "漢 é", "\u2028", "#"])
def test_text_is_written_as_it_was(tmp_path: Path, odd: str) -> None:
    settings = load(tmp_path, text())
    harness = HarnessTable(command=("x", odd), env={odd: odd})
    resolved = msgspec.structs.replace(settings, score=odd, harness=harness)
    (tmp_path / "again.toml").write_text(run_toml(resolved), encoding="utf-8")
    assert load_run(tmp_path / "again.toml") == resolved


def test_what_is_not_set_is_told_with_what_it_then_is(tmp_path: Path) -> None:
    printed = run_toml(load(tmp_path, text()))
    for line in ("# score is not set", "# calls is not set", "# clip_low is not set: 0.0003", "tasks = []"):
        assert line in printed.splitlines()
    for name in ("epochs", "max_updates", "every = 10"):
        assert name not in printed


# ------------------------------------------------------------------------------------------- documentation


DOCS = (Path(__file__).parents[3] / "docs" / "live.md").read_text()
TABLES: dict[str, type[msgspec.Struct]] = {
    "Top level": RunSettings,
    "`[engine]`": EngineTable,
    "`[harness]`": HarnessTable,
    "`[[tasks]]`": TaskTable,
    "`[rollout]`": RolloutTable,
    "`[limits]`": LimitTable,
    "`[timeouts]`": TimeoutTable,
    "`[sampling]`": SamplingTable,
    "`[trees]`": TreeTable,
    "`[evaluation]`": EvaluationTable,
    "`[report]`": ReportTable,
}


def documented(title: str) -> dict[str, str]:
    section = DOCS.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    return dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]*?) ?\|", section, re.MULTILINE))


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_documented_with_its_default_and_nothing_else(title: str) -> None:
    rows = documented(title)
    fields = {field.encode_name: field for field in msgspec.structs.fields(TABLES[title])}
    tables = {name for name, field in fields.items() if tables_in(field.type)[0] and name != "tasks"}
    if title == "Top level":
        tables.add("tasks")
    assert set(rows) == set(fields) - tables
    for name, row in rows.items():
        field = fields[name]
        assert (row == "required") is field.required, name
        if field.default not in (msgspec.NODEFAULT, None, ()):
            assert json.loads(row.strip("`")) == field.default, name


def test_every_table_is_documented() -> None:
    known = {field.encode_name for field in msgspec.structs.fields(RunSettings) if tables_in(field.type)[0]}
    assert known == {title.strip("`[]") for title in TABLES if title != "Top level"} | {"train"}


def test_the_example_of_the_documentation_is_understood(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    settings = load(tmp_path, example)
    assert [each.weight for each in settings.tasks] == [2.0, 1.0]
    assert settings.train.updates_per_batch == 4
