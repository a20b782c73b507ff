"""The engines that a run file asks for, not yet started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gyre.elastic.engines.embedded import Embedded
from gyre.elastic.engines.face import Engine
from gyre.elastic.engines.launch import Launch, launch
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.sglang import Sglang
from gyre.elastic.engines.transfer import FromDisk, FromMemory
from gyre.elastic.engines.vllm import ENV, Vllm
from gyre.proxy.units import seconds_of
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import EngineKind, EngineTable, RunSettings, Transfer

SERVED = "served"
"""The link in RUN/services that engines of the user's own command read the model from."""
_PATHS = ("PYTHONPATH",)
_TEMPLATE = "{chat_template}"


def engines_of(settings: RunSettings, folder: LiveFolder) -> list[Engine]:
    """Of one kind, named `engine-0` and so on, as a run file says that makes sense (`sense.py`)."""
    table, options = settings.engine, options_of(settings)
    if table.kind is EngineKind.EMBEDDED:
        return [Embedded(_name(number), options, folder.services) for number in range(table.count)]
    sources = _sources(settings, folder)
    if table.kind is EngineKind.VLLM:
        return [
            Vllm(_name(number), options, source, _transfer(table.transfer))
            for number, source in enumerate(sources)
        ]
    return [Sglang(_name(number), options, source) for number, source in enumerate(sources)]


def options_of(settings: RunSettings) -> EngineOptions:
    table = settings.engine
    return EngineOptions(
        model=Path(settings.model).name,
        chat_template=Path(settings.chat_template) if settings.chat_template else None,
        context=settings.limits.context,
        slots=table.slots,
        threads=table.threads,
        kv_memory=table.kv_memory,
        device=table.device,
        dtype=table.dtype,
        in_flight=table.in_flight.value,
        start_timeout_s=seconds_of(table.start_timeout),
        publish_timeout_s=seconds_of(table.publish_timeout),
    )


def _sources(settings: RunSettings, folder: LiveFolder) -> Sequence[Launch | str]:
    table = settings.engine
    if table.urls:
        return table.urls
    env = _env(table)
    served = folder.services / SERVED
    words = [_with_template(word, settings.chat_template) for word in table.command]
    return [
        launch(_name(number), words, env, served=served, output=folder.services)
        for number in range(table.count)
    ]


def _env(table: EngineTable) -> dict[str, str]:
    """What the file says beside what vLLM needs; of two PYTHONPATHs both."""
    ours = ENV if table.kind is EngineKind.VLLM else {}
    theirs = {name: table.env.get(name) or os.environ.get(name) for name in _PATHS}
    both = {name: f"{ours[name]}{os.pathsep}{said}" for name, said in theirs.items() if said and name in ours}
    return ours | table.env | both


def _with_template(word: str, template: str | None) -> str:
    return word.replace(_TEMPLATE, template) if template else word


def _transfer(wanted: Transfer) -> FromDisk | FromMemory:
    match wanted:
        case Transfer.DISK:
            return FromDisk()
        case Transfer.NCCL:
            return FromMemory("nccl")
        case Transfer.IPC:
            return FromMemory("ipc")


def _name(number: int) -> str:
    return f"engine-{number}"
