"""Task folders: what is read and refused, what runs without a container, what the workspace starts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.trainer.rollout.task import Task, TaskError, find_tasks, load_task, prepare, resolve_env


def write(folder: Path, files: dict[str, str]) -> Path:
    """A task folder with these files beside those that every task has; `None` leaves one out."""
    usual = {"task.toml": "", "instruction.md": "Do it.\n", "tests/test.sh": "#!/bin/sh\n"}
    for name, text in (usual | files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def made(folder: Path, **files: str) -> Task:
    """A task with that Dockerfile, task.toml, instruction or test.sh."""
    names = {
        "docker": "environment/Dockerfile",
        "toml": "task.toml",
        "told": "instruction.md",
        "test": "tests/test.sh",
    }
    return load_task(write(folder, {names[key]: text for key, text in files.items()}))


def refusal(folder: Path) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(folder)
    return str(caught.value)


def started(task: Task, workspace: Path) -> dict[str, str]:
    prepare(task, workspace)
    files = sorted(path for path in workspace.rglob("*") if path.is_file())
    return {str(path.relative_to(workspace)): path.read_text() for path in files}


TOML = """
version = "1.0"
[task]
name = "harbour/lamp"
[metadata]
difficulty = "hard"
tags = ["light"]
[agent]
timeout_sec = 90.5
[verifier]
timeout_sec = 20
env = { JUDGE = "${JUDGE_MODEL:-small}" }
[environment]
memory = "2G"
env = { LAMP = "on" }
"""


def test_what_task_toml_says(tmp_path: Path) -> None:
    task = made(tmp_path / "lamp-1", toml=TOML, told="Light it.\n")
    assert (task.name, task.short_name, task.instruction) == ("harbour/lamp", "lamp-1", "Light it.\n")
    assert (task.timeout_s, task.verifier_timeout_s, task.difficulty) == (90.5, 20, "hard")
    assert (task.env, task.verifier_env) == ({"LAMP": "on"}, {"JUDGE": "${JUDGE_MODEL:-small}"})
    assert task.metadata == {"difficulty": "hard", "tags": ["light"]}
    assert (task.notes, task.needs_container) == ((), None)


def test_an_empty_task_toml_will_do(tmp_path: Path) -> None:
    task = made(tmp_path / "lamp")
    assert (task.name, task.timeout_s, task.verifier_timeout_s, task.difficulty) == ("lamp", None, 600, None)


@pytest.mark.parametrize("missing", ["task.toml", "instruction.md"])
def test_a_missing_file_is_named_with_its_folder(tmp_path: Path, missing: str) -> None:
    (write(tmp_path / "t", {}) / missing).unlink()
    assert refusal(tmp_path / "t") == f"task `{tmp_path / 't'}` has no `{missing}`"


def test_tests_may_be_missing_until_they_are_asked_for(tmp_path: Path) -> None:
    (write(tmp_path / "t", {}) / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"has no `tests/test.sh`") as caught:
        _ = load_task(tmp_path / "t").tests
    assert "--score" in caught.value.hint


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[agent\n", "Expected ']' at the end of a table declaration"),
        ("[agent]\ntimeout_sec = 'long'\n", "`agent.timeout_sec`: expected `float | null`, got `str`"),
        ("[agent]\ntimeout_sec = 0\n", "`agent.timeout_sec` is 0.0, which is no number of seconds above 0"),
        ("[verifier]\ntimeout_sec = inf\n", "`verifier.timeout_sec` is inf"),
        ("[verifier]\ntimeout_sec = nan\n", "`verifier.timeout_sec` is nan"),
        ("[environment.env]\nA = 1\n", "`environment.env[...]`: expected `str`, got `int`"),
        ("agent = 3\n", "`agent`: expected `object`, got `int`"),
    ],
)
def test_what_task_toml_cannot_say(tmp_path: Path, toml: str, said: str) -> None:
    text = refusal(write(tmp_path / "t", {"task.toml": toml}))
    assert text.startswith(f"task `{tmp_path / 't'}`: `task.toml`: {said}")


def test_files_that_are_no_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", {})
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    assert refusal(folder).endswith("`instruction.md` is no UTF-8")
    (folder / "instruction.md").write_text(" \n")
    assert refusal(folder).endswith("`instruction.md` is empty")
    (folder / "instruction.md").unlink()
    (folder / "instruction.md").mkdir()
    assert refusal(folder).endswith("cannot read `instruction.md`: Is a directory")


def test_a_key_nearly_right_is_noted_and_new_ones_are_not(tmp_path: Path) -> None:
    toml = "schema_version = '2.1'\n[agent]\ntimeout_secs = 5\nmood = 1\n[verifer]\n[environment]\ncpus = 2\n"
    task = made(tmp_path / "t", toml=toml)
    assert task.notes == (
        "`schema_version` is 2.1, newer than what gyre knows (1.x)",
        "`verifer` is no key of Harbor's; did you mean `verifier`?",
        "`[agent] timeout_secs` is no key of Harbor's; did you mean `timeout_sec`?",
    )
    assert task.timeout_s is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<!-- canary 12-34 -->\n\nDo it.", "Do it."),
        ("# bench CANARY string\n# canary 2\nDo it.", "Do it."),
        ("\nDo it.\n# canary", "\nDo it.\n# canary"),
    ],
)
def test_the_mark_of_a_benchmark_is_not_shown(tmp_path: Path, text: str, shown: str) -> None:
    assert made(tmp_path / "t", told=text).instruction == shown


DOCKERFILE = """\
# syntax=docker/dockerfile:1
FROM python:3.12-slim AS base
LABEL maintainer="nobody"
ENV COLOUR=red SIZE="very large"
WORKDIR /srv/work
COPY --chown=1000:1000 a.txt b.txt \\
     texts/
COPY ["sub", "."]
COPY one.txt two.txt
WORKDIR /srv
COPY c*.txt work/many/
WORKDIR work
CMD ["bash"]
"""


def test_a_dockerfile_that_only_copies_is_followed(tmp_path: Path) -> None:
    files = {f"environment/{name}.txt": name for name in ("a", "b", "c1", "c2", "one", "not-copied")}
    files |= {"environment/sub/x/deep.txt": "deep", "environment/Dockerfile": DOCKERFILE}
    task = load_task(write(tmp_path / "t", files))
    assert (task.needs_container, task.env) == (None, {"COLOUR": "red", "SIZE": "very large"})
    assert started(task, tmp_path / "work") == {
        "many/c1.txt": "c1",
        "many/c2.txt": "c2",
        "texts/a.txt": "a",
        "texts/b.txt": "b",
        "two.txt": "one",
        "x/deep.txt": "deep",
    }


def test_without_a_dockerfile_its_files_are_the_workspace(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "t", {"environment/a/b.txt": "b", "environment/c.txt": "c"}))
    assert started(task, tmp_path / "work") == {"a/b.txt": "b", "c.txt": "c"}
    assert started(load_task(write(tmp_path / "bare", {})), tmp_path / "empty") == {}
    assert (tmp_path / "empty").is_dir()


def test_a_file_copied_to_a_folder_that_is_there_goes_into_it(tmp_path: Path) -> None:
    docker = "FROM ubuntu\nWORKDIR /app\nCOPY d d\nCOPY f.txt d\n"
    files = {"environment/Dockerfile": docker, "environment/d/g.txt": "g", "environment/f.txt": "f"}
    assert started(load_task(write(tmp_path / "t", files)), tmp_path / "work") == {
        "d/f.txt": "f",
        "d/g.txt": "g",
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN apt-get update", "line 3 needs a container: `RUN apt-get update`"),
        ("FROM debian:12", "line 3 needs a container: `FROM debian:12`"),
        ("FROM team/data", "line 3 needs a container: `FROM team/data`"),
        ("USER nobody", "line 3 needs a container"),
        ("ADD a.tar .", "line 3 needs a container"),
        ("COPY --from=base /x .", "line 3 needs a container"),
        ("ENV PATH=$PATH:/x", "line 3 needs a container"),
        ("ENV OLD form", "line 3 needs a container"),
        ("WORKDIR $HOME", "line 3 needs a container"),
        ("COPY . /etc/thing", "copies to `/etc/thing`, outside of `/app`"),
        ("COPY . ../up", "copies to `/app/../up`, outside of `/app`"),
        ("COPY ghost.txt .", "copies `ghost.txt`, which is not in `environment/`"),
        ("COPY ../task.toml .", "copies `../task.toml`, which is not in `environment/`"),
    ],
)
def test_a_dockerfile_that_does_more_needs_a_container(tmp_path: Path, line: str, why: str) -> None:
    task = made(tmp_path / "t", docker=f"FROM debian:12\nWORKDIR /app\n{line}\n")
    assert task.needs_container is not None
    assert task.needs_container.startswith(f"`environment/Dockerfile` {why}")
    with pytest.raises(TaskError, match="needs a container") as caught:
        prepare(task, tmp_path / "work")
    assert "import-harbor" in caught.value.hint
    assert not (tmp_path / "work").exists()


def test_an_image_that_may_hold_some_of_the_task_needs_a_container(tmp_path: Path) -> None:
    task = made(tmp_path / "t", docker="FROM team/data:1\n")
    assert task.needs_container == "`environment/Dockerfile` line 1 needs a container: `FROM team/data:1`"


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("[[steps]]\nname = 'one'\n", "it has several steps, which only Harbor runs"),
        ("[environment]\ndocker_image = 'team/image:1'\n", "its image is `team/image:1`"),
        ("[environment]\nos = 'Windows'\n", "it is for Windows"),
        ("[environment]\ngpus = 1\n", "it asks for accelerators"),
        ("[environment]\nallow_internet = false\n", "it limits the network"),
        ("[agent]\nnetwork_mode = 'no-network'\n", "it limits the network"),
        ("[environment]\nmcp_servers = [{ name = 'm', url = 'u' }]\n", "it starts MCP servers"),
        ("[verifier]\nuser = 'root'\n", "it runs as another user"),
        ("[verifier.environment]\n", "its verifier has an environment of its own"),
        ("[[verifier.collect]]\ncommand = 'x'\n", "it collects from services"),
    ],
)
def test_what_task_toml_asks_of_a_container(tmp_path: Path, toml: str, why: str) -> None:
    assert made(tmp_path / "t", toml=toml).needs_container == why


def test_a_task_in_steps_has_its_instructions_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", {"task.toml": "[[steps]]\nname = 'one'\n"})
    (folder / "instruction.md").unlink()
    assert load_task(folder).instruction == ""


@pytest.mark.parametrize(
    ("name", "line", "why"),
    [
        ("instruction.md", "Write `/app/out.txt`.", "`instruction.md` line 2 names `/app`"),
        ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt", "`tests/test.sh` line 2 names `/logs`"),
        ("tests/deep/check.py", 'open("/srv/x")', "`tests/deep/check.py` line 2 names `/srv`"),
        ("tests/test.sh", "apt-get -y install curl", "`tests/test.sh` line 2 installs packages: `apt-get"),
        ("instruction.md", "Run apt-get install curl.", None),
        ("tests/test.sh", 'echo 1 > "${GYRE_REWARD_DIR:-/logs/verifier}/reward.txt"', None),
        ("tests/check.py", 'os.environ.get("GYRE_WORKSPACE", "/app")', None),
        ("tests/test.sh", "ls photos/app $HERE/tests $(pwd)/logs /apple /app-x example.org/app", None),
    ],
)
def test_paths_that_only_a_container_has(tmp_path: Path, name: str, line: str, why: str | None) -> None:
    docker = "FROM debian\nWORKDIR /srv/x\n" if why is not None and "/srv" in why else "FROM debian\n"
    files = {"environment/Dockerfile": docker, name: f"one line\n{line}\n"}
    found = load_task(write(tmp_path / "t", files)).needs_container
    assert found is None if why is None else (found or "").startswith(why)


def test_compose_files_need_a_container(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "t", {"environment/docker-compose.yaml": "services: {}\n"}))
    assert task.needs_container == "it has `environment/docker-compose.yaml`"


def test_tasks_are_found_by_name_also_those_that_lack_a_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / name, {})
    (write(tmp_path / "c", {}) / "task.toml").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("x")
    assert find_tasks(tmp_path) == [tmp_path / name for name in ("a", "b", "c")]
    assert find_tasks(tmp_path / "a") == [tmp_path / "a"]


def test_no_tasks_at_all(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no tasks in `.*`"):
        find_tasks(tmp_path)
    with pytest.raises(TaskError, match="is no folder"):
        find_tasks(tmp_path / "ghost")


def test_variables_from_outside(tmp_path: Path) -> None:
    wanted = {"A": "plain $X", "B": "${B}", "C": "${C:-c}", "D": "${D:-}"}
    assert resolve_env(wanted, {"B": "b"}) == {"A": "plain $X", "B": "b", "C": "c", "D": ""}
    with pytest.raises(TaskError, match=r"variable `B` is `\$\{B\}`, which is not set here"):
        resolve_env(wanted, {})
