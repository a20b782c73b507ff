"""What makes no sense in a run file although every value alone may be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gyre.proxy.errors import ConfigError
from gyre.proxy.units import bytes_of, seconds_of
from gyre.trainer.config import checked, require_finite
from gyre.trainer.errors import TrainError
from gyre.trainer.live.settings import EngineKind, EngineTable, HarnessTable, RunSettings, TaskTable, Transfer
from gyre.trainer.tables import joined
from gyre.treebuilder.options import CAP, Rule

_OFFLINE = {
    "epochs": "`rollout.batches` says how long a run is",
    "max_updates": "`rollout.batches` says how long a run is",
    "checkpoint": "a checkpoint is written at each publication, every `rollout.burst` batches",
}
_EMBEDDED = ("slots", "threads", "kv_memory", "device", "dtype")
_PLACES, _TEMPLATE = ("{model}", "{port}"), "{chat_template}"
_MAY_BE_EMPTY = (
    "train.loss.reference",
    *(f"{table}.{key}" for table in ("engine", "harness") for key in ("command", "env")),
)
_NAME = re.compile(r"[^=\0]+")


def require_texts(table: Mapping[str, Any]) -> None:
    """Of a file as it stands: a text that is empty is a mistake, and no path and no program has a NUL."""
    for name, text in _texts("", table):
        if "\0" in text:
            raise TrainError(f"`{name}` has a NUL in it")
        if not text and not name.startswith(_MAY_BE_EMPTY):
            raise TrainError(f"`{name}` is empty", "leave it out, or say something")


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(joined(name, key), each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(name, each)


def require_live(table: Mapping[str, Any]) -> None:
    """Of `[train]` as it stands in the file: nothing that only training on stored trees has."""
    train = table.get("train", {})
    for key, hint in _OFFLINE.items():
        if key in train and (key != "checkpoint" or "every" in train[key]):
            name = "train.checkpoint.every" if key == "checkpoint" else f"train.{key}"
            raise TrainError(f"`{name}` is for training on stored trees", f"leave it out: {hint}")


def require_sense(settings: RunSettings) -> None:
    """TrainError for what makes no sense, by itself or together."""
    require_finite(msgspec.to_builtins(settings))
    _units(settings)
    _engine(settings.engine)
    _template(settings)
    _harness(settings.harness)
    _tasks(settings)
    _evaluation(settings)
    _groups(settings)
    checked(settings.train)


def _units(settings: RunSettings) -> None:
    engine, limits, timeouts = settings.engine, settings.limits, settings.timeouts
    times = {
        "engine.start_timeout": engine.start_timeout,
        "engine.publish_timeout": engine.publish_timeout,
        "limits.time": limits.time,
        "timeouts.scorer": timeouts.scorer,
        "timeouts.run": timeouts.run,
    }
    sizes = {"limits.workspace": limits.workspace, "limits.memory": limits.memory}
    for values, read in ((times, seconds_of), (sizes, bytes_of)):
        for key, text in values.items():
            if text is None:
                continue
            try:
                read(text)
            except ConfigError as error:
                raise TrainError(f"`{key}`: {error.message}", error.hint) from None


def _engine(engine: EngineTable) -> None:
    if engine.kind is EngineKind.EMBEDDED:
        _embedded(engine)
    else:
        _server(engine)
    for url in engine.urls:
        _url(url)
    if len(set(engine.urls)) < len(engine.urls):
        raise TrainError("`engine.urls` names an engine twice")
    _names("engine.env", engine.env)
    _transfer(engine)


def _transfer(engine: EngineTable) -> None:
    if engine.transfer is not Transfer.DISK and engine.kind is not EngineKind.VLLM:
        raise TrainError(
            f"`engine.transfer` is `{engine.transfer}`, and `engine.kind` is `{engine.kind}`",
            "only vLLM takes weights through memory: leave it out",
        )


def _embedded(engine: EngineTable) -> None:
    for key in ("urls", "command", "env"):
        if getattr(engine, key):
            raise TrainError(
                f"`engine.{key}` is for vLLM and SGLang, and `engine.kind` is `{engine.kind}`",
                "gyre starts its own engine by itself; set `kind`, or leave it out",
            )


def _server(engine: EngineTable) -> None:
    if not (engine.urls or engine.command):
        hint = f'`urls = ["http://127.0.0.1:8000"]` of one that runs, or {_EXAMPLES[engine.kind]}'
        raise TrainError(f"`engine.kind` is `{engine.kind}`, and nothing says where it is", hint)
    if engine.urls and engine.command:
        raise TrainError(
            "`engine.urls` and `engine.command` are both set", "engines run already, or are started here"
        )
    if engine.urls and (engine.count != 1 or engine.env):
        key = "env" if engine.env else "count"
        raise TrainError(f"`engine.{key}` is for engines that are started here", "leave it out")
    for place in _PLACES:
        if engine.command and not any(place in word for word in engine.command):
            raise TrainError(f"`engine.command` has no `{place}`", f"for example {_EXAMPLES[engine.kind]}")
    for key in _EMBEDDED:
        if getattr(engine, key) != getattr(EngineTable(), key):
            raise TrainError(
                f"`engine.{key}` is for the embedded engine, and `engine.kind` is `{engine.kind}`",
                "tell the engine by its own arguments",
            )


def _template(settings: RunSettings) -> None:
    """Engine and trainer have to render alike, and only an engine of ours is given the template by itself."""
    engine = settings.engine
    if settings.chat_template is None or engine.kind is EngineKind.EMBEDDED:
        return
    if engine.urls:
        raise TrainError(
            "`chat_template` is set, and `engine.urls` names engines that run already",
            "start them with that template and leave it out here",
        )
    if not any(_TEMPLATE in word for word in engine.command):
        raise TrainError(
            f"`chat_template` is set, and `engine.command` has no `{_TEMPLATE}`",
            f"hand it on, as in `--chat-template {_TEMPLATE}`",
        )


_EXAMPLES = {
    EngineKind.VLLM: '`command = ["vllm", "serve", "{model}", "--port", "{port}", ...]`',
    EngineKind.SGLANG: '`command = ["python", "-m", "sglang.launch_server", "--model-path", "{model}", '
    '"--port", "{port}", ...]`',
}


def _url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise TrainError(f"`engine.urls`: `{url}` is no URL", "give one like http://127.0.0.1:8000")


def _harness(harness: HarnessTable) -> None:
    if harness.preset is None and not harness.command:
        raise TrainError("`[harness]` says neither `preset` nor `command`", "an agent is one of the two")
    if harness.preset is None and harness.program is not None:
        raise TrainError("`harness.program` is a preset's executable", "set `preset`, or give a `command`")
    if harness.preset is None and not harness.command[0].strip():
        raise TrainError("`harness.command` begins with an empty word", "it begins with a program")
    _names("harness.env", harness.env)
    _names("harness.keep_env", harness.keep_env)


def _names(key: str, names: Mapping[str, str] | tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise TrainError(f"`{key}`: `{name}` is no name of a variable")


def _tasks(settings: RunSettings) -> None:
    if not settings.tasks:
        raise TrainError("there are no tasks", "begin a list with `[[tasks]]`, and say its `folder`")
    trained = _once("tasks", settings.tasks)
    for folder in _once("evaluation.tasks", settings.evaluation.tasks):
        if folder in trained:
            raise TrainError(
                f"`{folder}` stands in `[[tasks]]` and in `[[evaluation.tasks]]`",
                "what is trained on says nothing about other tasks: evaluate on others",
            )


def _once(key: str, lists: tuple[TaskTable, ...]) -> set[str]:
    folders: set[str] = set()
    for each in lists:
        if each.folder in folders:
            raise TrainError(f"`[[{key}]]` has `{each.folder}` twice", "give it a `weight` instead")
        folders.add(each.folder)
    return folders


def _evaluation(settings: RunSettings) -> None:
    evaluation = settings.evaluation
    if not evaluation.tasks and (evaluation.every or evaluation.greedy):
        key = "every" if evaluation.every else "greedy"
        raise TrainError(
            f"`evaluation.{key}` is set, and there is nothing to evaluate on",
            "add `[[evaluation.tasks]]` with a `folder`",
        )
    if any(each.weight != 1.0 for each in evaluation.tasks):
        raise TrainError(
            "`evaluation.tasks.weight` is not used: an evaluation takes all tasks alike", "leave it out"
        )


def _groups(settings: RunSettings) -> None:
    if settings.rollout.group_size == 1:
        raise TrainError(
            "`rollout.group_size` is 1, and an execution is compared with the others of its group",
            "give at least 2; 16 is usual",
        )
    if settings.trees.select is Rule.ALL and settings.trees.cap != CAP:
        raise TrainError("`trees.cap` is not used: `trees.select` is `all`", "leave one of them out")
