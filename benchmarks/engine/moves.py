"""A cached prefix, a weight swap, a hand-over of keys and values: beside computing, or in the middle of it.

A process of its own; prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from transformers.utils import logging

from benchmarks.engine.loads import CONVERSATION, PREFIX, Load, prompts_of
from benchmarks.engine.report import Moves
from benchmarks.engine.sides import CTX, Own
from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.moving import conversation as transfer
from gyre.elastic.engine.moving.carry import export_ids, import_conversation
from gyre.elastic.engine.request import Collected, Token
from gyre.elastic.engine.thread import EngineThread
from gyre.elastic.engine.weights.staged import digest_of, stage

NEW = 20
"""Tokens after the prefix."""
STREAMS, AROUND = 4, 20
"""Streams that are open during a swap, and the tokens that each has by then."""
BLOB_LIMIT = 1 << 32


@dataclass(slots=True)
class Clocked(Collected):
    """When its tokens came, in seconds."""

    times: list[float] = field(default_factory=list)

    def token(self, token: Token) -> bool:
        self.times.append(time.perf_counter())
        return Collected.token(self, token)


def first_token(own: Own, ids: Sequence[int], cached: int) -> float:
    """Seconds until the first token of a prompt of which `cached` tokens are known."""
    listener = Collected()
    start = time.perf_counter()
    own.ask(ids, Load(open=1, prompt=len(ids), output=1, temperature=1), listener)
    while not listener.tokens:
        own.core.step()
    took = time.perf_counter() - start
    if listener.start is None or listener.start.cached_tokens != cached:
        raise RuntimeError(f"{listener.start} where {cached} tokens should have been cached")
    return took


def cached_prefix(own: Own, scale: float, number: int) -> tuple[float, float]:
    """Seconds to the first token without and with the prefix."""
    prefix = int(PREFIX * scale)
    load = Load(open=2, prompt=prefix + NEW, output=1, temperature=1)
    ids, other = prompts_of(load, own.core.model.vocab_size, number)
    cold = first_token(own, ids, 0)
    warm = first_token(own, [*ids[:prefix], *other[prefix:]], prefix)
    own.forget()
    return cold, warm


def hand_over(own: Own, scale: float, number: int) -> tuple[float, dict[str, float]]:
    """Seconds to compute a conversation, and to bring it over."""
    load = Load(open=1, prompt=int(CONVERSATION * scale), output=1, temperature=1)
    (ids,) = prompts_of(load, own.core.model.vocab_size, number)
    prefill = first_token(own, ids, 0)
    steps: dict[str, float] = {}
    with taking(steps, "export"):
        conversation = export_ids(own.core, ids)
    with taking(steps, "encode"):
        blob = transfer.encode(conversation)
    own.forget()
    with taking(steps, "decode"):
        received = transfer.decode(blob, BLOB_LIMIT)
    with taking(steps, "import"):
        import_conversation(own.core, received)
    first_token(own, ids, len(ids) - 1)
    own.forget()
    return prefill, steps | {"MB": len(blob) / 1e6}


@contextmanager
def taking(steps: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    steps[name] = time.perf_counter() - start


def swaps(loaded: LoadedModel, own: Own, rounds: int) -> tuple[list[float], list[float]]:
    """The longest time without a token while new weights are read and published, and as long before that."""
    thread = EngineThread(own.core)
    thread.start()
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder:
        loaded.model.save_pretrained(folder)
        gaps = [swap(loaded, own, thread, Path(folder), number) for number in range(rounds)]
    thread.close()
    return [stop for stop, _ in gaps], [usual for _, usual in gaps]


def swap(
    loaded: LoadedModel, own: Own, thread: EngineThread, folder: Path, number: int
) -> tuple[float, float]:
    load = Load(open=STREAMS, prompt=100, output=CTX - 100, temperature=1)
    requests = [own.request(prompt, load) for prompt in prompts_of(load, loaded.vocab_size, number)]
    listeners = [Clocked() for _ in requests]
    for request, listener in zip(requests, listeners, strict=True):
        thread.submit([(request, listener)]).result()
    _wait(lambda: min(len(one.times) for one in listeners) > AROUND)
    begin = time.perf_counter()
    staged = stage(folder, loaded)
    thread.call(lambda core: core.publish(staged, version=f"swap {number}")).result()
    end = time.perf_counter()
    _wait(lambda: min(one.times[-1] for one in listeners) > end)
    thread.abort(request.request_id for request in requests)
    _wait(lambda: all(one.finish for one in listeners))
    times = [one.times for one in listeners]
    started = max(one[0] for one in times)
    stop = max(_longest(one, lambda before, after: after > begin and before < end) for one in times)
    return stop, max(
        _longest(one, lambda before, after: before >= started and after < begin) for one in times
    )


def _wait(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.002)


def _longest(times: Sequence[float], counts: Callable[[float, float], bool]) -> float:
    """The longest time between two tokens, of those that count."""
    return max(after - before for before, after in pairwise(times) if counts(before, after))


def measure(loaded: LoadedModel, rounds: int, scale: float) -> Moves:
    own = Own(loaded, digest_of(loaded.model))
    found = [cached_prefix(own, scale, number) for number in range(rounds)]
    moved = [hand_over(own, scale, number) for number in range(rounds)]
    stops, usual = swaps(loaded, own, rounds)
    return Moves(
        model=loaded.name,
        prefix=int(PREFIX * scale),
        conversation=int(CONVERSATION * scale),
        cold_s=[cold for cold, _ in found],
        warm_s=[warm for _, warm in found],
        prefill_s=[prefill for prefill, _ in moved],
        steps=[steps for _, steps in moved],
        stop_s=stops,
        usual_s=usual,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.engine.moves", description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--scale", type=float, default=1, help="of the lengths")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    print(json.dumps(asdict(measure(load_model(chosen.model), chosen.rounds, chosen.scale))))


if __name__ == "__main__":
    main()
