"""Harnesses under bubblewrap. Where it is not installed, that they are refused is what is tested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.proxy.log.live import TOKEN_ENV
from gyre.trainer.rollout import visible
from gyre.trainer.rollout.confine import Cage, ConfinementError, confined, require_confinement, why_not
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.run import run_execution
from gyre.trainer.rollout.start import hidden
from gyre.trainer.rollout.task import load_task
from gyre.trainer.rollout.visible import homes, readable
from tests.rollout.harnesses import Stage, alive
from tests.rollout.test_run import over_when
from tests.rollout.test_task import write as write_task


@pytest.fixture
def fresh() -> Iterator[None]:
    """Whether bubblewrap works is looked at once."""
    why_not.cache_clear()
    yield
    why_not.cache_clear()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def mounts(argv: list[str]) -> list[tuple[str, str]]:
    """(flag, target) in their order, of what stands after the common part."""
    found = []
    for number, word in enumerate(argv):
        if word in ("--tmpfs", "--remount-ro"):
            found.append((word, argv[number + 1]))
        elif word in ("--bind", "--ro-bind-try"):
            found.append((word, argv[number + 2]))
    return found


def folders(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name).mkdir(parents=True)
    return [root / name for name in names]


# What is said to bubblewrap.


def test_the_inner_folder_counts(tmp_path: Path) -> None:
    home, run, work, temporary = folders(tmp_path, "home", "home/run", "home/run/e1/work", "t")
    script = home / "run" / "agent" / "agent.py"
    script.parent.mkdir()
    script.write_text("")
    cage = Cage(
        workdir=work, writable=[work], temporary=temporary, hidden=[run, home], readable=[script.parent]
    )
    argv = confined(["agent", "--", "-x"], cage)
    found = mounts(argv)
    order = [
        ("--bind", "/tmp"),
        ("--tmpfs", str(home)),
        ("--tmpfs", str(run)),
        ("--ro-bind-try", str(script.parent)),
        ("--bind", str(work)),
        ("--remount-ro", str(home)),
    ]
    assert [found.index(each) for each in order] == sorted(found.index(each) for each in order)
    assert argv[argv.index("--bind") + 1] == str(temporary)
    assert argv[0] == "bwrap" and argv[-6:] == ["--chdir", str(work), "--", "agent", "--", "-x"]


def test_shared_memory_lies_in_its_own_folder_and_devices_are_not_written(tmp_path: Path) -> None:
    work, temporary = folders(tmp_path, "work", "t")
    argv = confined(["agent"], Cage(workdir=work, writable=[work], temporary=temporary))
    shared = argv.index("/dev/shm")
    assert argv[shared - 2 : shared] == ["--bind", str(temporary)]
    remounted = [number for number, word in enumerate(argv) if word == "--remount-ro"]
    assert [argv[number + 1] for number in remounted].count("/dev") == 1


def test_it_has_no_powers_and_ends_with_us(tmp_path: Path) -> None:
    argv = confined(["agent"], Cage(workdir=tmp_path, writable=[tmp_path], temporary=tmp_path))
    for word in ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"):
        assert word in argv
    assert "--unshare-net" not in argv
    assert argv[argv.index("--cap-drop") + 1] == "ALL"
    assert ("--tmpfs", "/run") in mounts(argv)


def test_the_whole_system_is_never_hidden(tmp_path: Path) -> None:
    cage = Cage(workdir=tmp_path, writable=[], temporary=tmp_path, hidden=[Path("/"), tmp_path / "none"])
    targets = [target for flag, target in mounts(confined(["a"], cage)) if flag == "--tmpfs"]
    assert targets == ["/run", "/var/tmp"]


def test_links_are_followed_to_what_is_hidden(tmp_path: Path) -> None:
    (data,) = folders(tmp_path, "data")
    (tmp_path / "home").symlink_to(data)
    cage = Cage(workdir=tmp_path, writable=[], temporary=tmp_path, hidden=[tmp_path / "home"])
    assert ("--tmpfs", str(data)) in mounts(confined(["a"], cage))


# What of it stays readable.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (home,) = folders(tmp_path, "user")
    monkeypatch.setenv("HOME", str(home))
    assert home in homes()
    return home


def test_programs_keep_what_they_need_and_keys_beside_them_do_not_show(home: Path) -> None:
    folders(
        home, "venv/bin", "venv/lib", "base/bin", "base/lib", ".cargo/bin", ".local/bin", ".local/share/keys"
    )
    (home / ".cargo" / "credentials.toml").write_text("token")
    (home / "base" / "bin" / "python3").write_text("")
    (home / "venv" / "bin" / "python3").symlink_to(home / "base" / "bin" / "python3")
    path = f"{home}/.cargo/bin:{home}/.local/bin:relative:"
    found = readable(str(home / "venv" / "bin" / "python3"), [], path)
    for name in (
        "venv/bin",
        "venv/lib",
        "base/bin",
        "base/lib",
        "base/bin/python3",
        ".cargo/bin",
        ".local/bin",
    ):
        assert home / name in found
    for name in (".", ".cargo", ".local", ".local/share", ".local/share/keys", ".cargo/credentials.toml"):
        assert home / name not in found


def test_a_file_that_the_command_names_shows_with_its_folder_but_never_the_whole_home(home: Path) -> None:
    folders(home, "work")
    for name in ("work/agent.py", "loose.py"):
        (home / name).write_text("")
    words = [f"{home}/work/agent.py", f"{home}/loose.py", "-x", "/no/such/file", "/" + "x" * 10_000, "a\0b"]
    found = readable("/bin/sh", words, "")
    assert home / "work" in found and home / "loose.py" in found and home not in found


def test_what_is_hidden_stays_so_whatever_names_it(home: Path, tmp_path: Path) -> None:
    """A variable as `HOME`, a program that lies in the home itself."""
    (home / "agent").write_text("")
    folders(home, ".keys", "data")
    (home / ".keys" / "one").write_text("")
    values = [str(home), str(tmp_path), str(home / "data"), str(home / ".keys" / "one")]
    found = readable(str(home / "agent"), [str(home)], str(home), values)
    cage = Cage(workdir=tmp_path, writable=[], temporary=tmp_path, hidden=homes(), readable=found)
    shown = {target for flag, target in mounts(confined(["a"], cage)) if flag == "--ro-bind-try"}
    assert {str(home / "agent"), str(home / "data"), str(home / ".keys" / "one")} <= shown
    assert not {str(home), str(home / ".keys")} & shown


def test_the_run_its_log_and_the_task_are_hidden(tmp_path: Path) -> None:
    files = {"task.toml": "", "instruction.md": "x", "tests/test.sh": ""}
    task = load_task(write_task(tmp_path / "lamp", files))
    options = Options(runs=tmp_path / "run" / "executions", hidden=[tmp_path / "run"])
    found = hidden(Job("e1", task), options, tmp_path / "logs")
    wanted = {options.runs, tmp_path / "run", tmp_path / "logs", tmp_path / "lamp", *visible.homes()}
    assert set(found) == wanted


# Where it cannot be.


def stand_in(folder: Path, text: str) -> str:
    (folder / "bin").mkdir()
    program = folder / "bin" / "bwrap"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(folder / "bin")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "`bwrap` (bubblewrap) is not installed"),
        (
            "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
            "No permissions to create new namespace",
        ),
        ("exit 7", "`bwrap` does not work here: exit code 7"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_without_it_the_user_has_to_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, why: str
) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, text) if text else str(tmp_path))
    with pytest.raises(ConfinementError) as refused:
        require_confinement(unsafe_local=False)
    assert why in str(refused.value) and "unconfined" in str(refused.value)
    assert all(way in refused.value.hint for way in ("bubblewrap", "--unsafe-local", "unsafe_local = true"))
    told: list[str] = []
    assert require_confinement(unsafe_local=True, tell=told.append) is False
    assert "unconfined" in told[0] and why in told[0]


# The real thing.

AGENT = """
import socket
call()
def tried(work):
    try:
        return work()
    except OSError as problem:
        return type(problem).__name__
def write(name):
    with open(name, "w") as file:
        file.write("1")
    return "written"
with socket.socket(socket.AF_UNIX) as server:
    server.bind("own.socket")
print(json.dumps({
    "source": tried(lambda: write(SOURCE)),
    "logs": tried(lambda: os.listdir(LOGS)),
    "other": tried(lambda: os.listdir(RUNS)),
    "own": sorted(os.listdir(os.path.dirname(os.getcwd()))),
    "tests": tried(lambda: open(TASK + "/tests/test.sh").read()),
    "instruction": open(sys.argv[1]).read(),
    "tmp": [write("/tmp/mine"), os.environ["TMPDIR"]],
    "home": write(os.path.join(os.environ["HOME"], "mine")),
    "work": write("answer"),
    "processes": len([name for name in os.listdir("/proc") if name.isdecimal()]),
    "token": [name for name in os.environ if "TOKEN" in name],
    "switch": tried(lambda: open("/proc/sys/vm/swappiness", "w")),
    "core": __import__("resource").getrlimit(4)[0],
}))
"""


def confine_or_refused() -> bool:
    """Whether it works here. Where it does not, the run is refused, which is what can be tested."""
    if not (why := why_not()):
        return True
    with pytest.raises(ConfinementError, match="unconfined"):
        require_confinement(unsafe_local=False)
    assert why
    return False


def test_a_confined_harness_works_and_changes_nothing_but_its_own(stage: Stage, tmp_path: Path) -> None:
    if not confine_or_refused():
        return
    files = {
        "task.toml": "",
        "instruction.md": "do it",
        "tests/test.sh": '#!/bin/sh\nset -e\ncd "$GYRE_WORKSPACE"; touch more; ! ls ' + f"{stage.runs}/e0\n"
        '[ -z "$GYRE_PROXY_TOKEN" ]; cp answer "$GYRE_REWARD_DIR/reward.txt"\n',
    }
    task = load_task(write_task(tmp_path / "tasks" / "lamp", files))
    (stage.runs / "e0").mkdir(parents=True)
    places = {
        "SOURCE": stage.folder / "agent.py",
        "LOGS": stage.proxy.logs,
        "RUNS": stage.runs,
        "TASK": task.folder,
    }
    text = AGENT
    for name, place in places.items():
        text = text.replace(name, repr(str(place)))
    options = stage.options([*stage.agent(text), "{instruction_file}"], confined=True)
    state = run_execution(Job("e1", task), options, stage.record, stage.stop)
    assert (state.outcome, state.reason) == ("completed", "")
    assert json.loads(Path(state.stdout).read_text()) == {
        "source": "OSError",
        "logs": [],
        "other": ["e1"],
        "own": ["home", "instruction.md", "workspace"],
        "tests": "FileNotFoundError",
        "instruction": "do it",
        "tmp": ["written", "/tmp"],
        "home": "written",
        "work": "written",
        "processes": 2,
        "token": [],
        "switch": "OSError",
        "core": 0,
    }
    assert (state.score, (stage.runs / "e1" / "home" / "mine").read_text()) == (1, "1")
    assert not Path("/tmp/mine").exists()


def test_a_confined_harness_has_time_to_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    if not confine_or_refused():
        return
    over_when(monkeypatch, stage.runs / "e1" / "workspace" / "up")
    agent = """
def bye(*_):
    write("answer", "5")
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
call()
subprocess.Popen(["setsid", "sleep", "1000"])
write("up", "")
time.sleep(1000)
"""
    state = stage.run(stage.agent(agent), confined=True, score="cat answer", timeout_s=9)
    assert (state.outcome, state.score) == ("timed_out", 5)
    assert alive(str(stage.folder / "agent.py")) == []


def test_a_variable_that_names_the_home_shows_nothing_of_it(stage: Stage, home: Path) -> None:
    if not confine_or_refused():
        return
    (home / "secret").write_text("mine")
    agent = "call(); print(os.listdir(os.environ['DATA']))"
    state = stage.run(stage.agent(agent), confined=True, env={"DATA": str(home)})
    assert (state.outcome, Path(state.stdout).read_text()) == ("completed", "[]\n")


def test_scorers_have_nothing_of_our_environment_but_what_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not confine_or_refused():
        return
    monkeypatch.setenv("SOME_API_KEY", "secret")
    score = "env | cut -d= -f1 | sort | tr '\\n' ' ' >&2; echo 1"
    state = stage.run(stage.agent("call()"), confined=True, score=score, scorer_env={"KEPT": "1"})
    assert state.score == 1
    found = set((stage.runs / "e1" / "scorer" / "try-1" / "stderr.txt").read_text().split())
    assert {"PATH", "HOME", "KEPT", "GYRE_WORKSPACE", "GYRE_EXECUTION"} <= found
    allowed = {
        "LANG",
        "LOGNAME",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "USER",
        "_",
        "KEPT",
        "PATH",
        "HOME",
    }
    assert {name for name in found if not name.startswith("GYRE_")} <= allowed


def test_the_token_of_the_proxy_is_not_for_scorers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not confine_or_refused():
        return
    monkeypatch.setenv(TOKEN_ENV, "secret")
    with Stage(tmp_path) as stage:
        state = stage.run(stage.agent("call()"), confined=True, score='test -z "$GYRE_PROXY_TOKEN" && echo 1')
    assert state.score == 1


DEVICES = """
call()
def tried(name):
    try:
        write(name, "1")
        return "written"
    except OSError as problem:
        return type(problem).__name__
import multiprocessing
multiprocessing.Lock()
print(tried("/dev/mine"), tried("/dev/null"), tried("/dev/shm/mine"), tried("/tmp/other"))
for name in "abc":
    write("/dev/shm/" + name, "x" * (1 << 20))
time.sleep(SECONDS)
"""


def test_devices_are_not_written_and_shared_memory_is_counted(stage: Stage) -> None:
    if not confine_or_refused():
        return
    state = stage.run(stage.agent(DEVICES.replace("SECONDS", "0")), confined=True)
    said = Path(state.stdout).read_text()
    assert (state.outcome, said) == ("completed", "OSError written written written\n")
    agent = stage.agent(DEVICES.replace("SECONDS", "1000"))
    state = stage.run(agent, name="e2", confined=True, workspace_limit=2 << 20)
    assert state.outcome == "failed" and state.reason.startswith("its files took 3")
    assert not Path("/dev/shm/mine").exists()


def test_a_confined_scorer_replaces_nothing_of_what_it_is_seen_to_say(stage: Stage, tmp_path: Path) -> None:
    if not confine_or_refused():
        return
    tests = """#!/bin/sh
tried() { "$@" 2> /dev/null && echo "$*"; }
cd "$GYRE_WORKSPACE/.."
tried rm stdout.txt
tried mkfifo stderr.txt
tried rmdir rewards
tried mv rewards workspace
tried touch mine
touch workspace/mine rewards/mine tests/mine "$HOME/mine" || exit 1
echo 1 > rewards/reward.txt
"""
    files = {"task.toml": "", "instruction.md": "x", "tests/test.sh": tests}
    task = load_task(write_task(tmp_path / "tasks" / "lamp", files))
    options = stage.options(stage.agent("call()"), confined=True)
    state = run_execution(Job("e1", task), options, stage.record, stage.stop)
    folder = stage.runs / "e1" / "scorer" / "try-1"
    assert (state.score, (folder / "stdout.txt").read_text()) == (1, "")
    assert sorted(path.name for path in folder.iterdir()) == ["rewards", "stderr.txt", "stdout.txt"]


# Limits, with it or without.


def test_memory_is_limited(stage: Stage) -> None:
    agent = "call(); write('before', '')\nbytearray(4 << 30); write('after', '')"
    state = stage.run(stage.agent(agent), memory=1 << 30)
    assert (state.outcome, state.reason) == ("failed", "exit code 1; MemoryError")
    assert [path.name for path in Path(state.workspace).iterdir()] == ["before"]


def test_processes_are_counted(stage: Stage) -> None:
    agent = "call()\nfor _ in range(20): subprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    state = stage.run(stage.agent(agent), processes=10)
    assert (state.outcome, state.reason) == ("failed", "it had more than 10 processes")
    assert alive(str(stage.folder / "agent.py")) == []


def test_the_processes_of_bubblewrap_are_not_counted(stage: Stage) -> None:
    if not confine_or_refused():
        return
    agent = "call()\nfor _ in range(MANY): subprocess.Popen(['sleep', '1000'])\ntime.sleep(SECONDS)"
    few = stage.agent(agent.replace("MANY", "2").replace("SECONDS", "2.5"))
    assert stage.run(few, confined=True, processes=3).outcome == "completed"
    many = stage.agent(agent.replace("MANY", "3").replace("SECONDS", "1000"))
    state = stage.run(many, name="e2", confined=True, processes=3)
    assert (state.outcome, state.reason) == ("failed", "it had more than 3 processes")


def test_no_core_is_left(stage: Stage) -> None:
    stage.run(
        stage.agent("call(); import resource; write('core', str(resource.getrlimit(resource.RLIMIT_CORE)))")
    )
    assert (stage.runs / "e1" / "workspace" / "core").read_text() == "(0, 0)"
