"""Long runs: linear time, bounded memory, a log no larger than what is new in it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, Worker, message

MEMORY = """
import resource, sys
from gyre.proxy.log.check import check
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert check(sys.argv[1]).ok
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


WORDS = [f"{a}{b}" for a in ("re", "con", "un", "pro", "in") for b in ("turn", "tain", "duct", "form", "do")]


def long_run(worker: Worker, calls: int, tokens: int) -> int:
    """`calls` that grow to `tokens`; returns the bytes that are new: messages, ids, log-probabilities."""
    draw, ids = random.Random(1), np.random.default_rng(1)
    per_call, sampled = tokens // calls - 100, 100
    prompt: list[int] = []
    messages: list[bytes] = []
    new = 0
    parent = None
    for i in range(calls):
        prompt = [*prompt, *ids.integers(0, 50_000, per_call).tolist()]
        output = ids.integers(0, 50_000, sampled).tolist()
        messages = [*messages, message(text(draw, per_call // 2))]
        worker.call(f"c{i:06d}", prompt, output, messages, parent=parent)
        new += 4 * per_call + 8 * sampled + len(messages[-1])
        parent = (f"c{i:06d}", 0, 0)
        prompt = [*prompt, *output]
    return new


def test_a_sealed_run_takes_at_most_one_and_a_half_times_what_is_new(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    new = long_run(worker, calls=60, tokens=140_000)
    worker.die()
    seal(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size <= 1.5 * new


def test_checking_a_run_takes_memory_for_what_is_new_not_for_all_prompts(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    long_run(worker, calls=60, tokens=300_000)
    worker.die()
    seal(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    # All prompts together are 36 MB of ids and about 70 MB of bodies, and would be kept twice.
    assert int(done.stdout) < 200 * 1024


def chain(worker: Worker, calls: int) -> None:
    """Each call has one new id, and samples the same id again."""
    whole = np.repeat(np.arange(calls), 2).astype("<i4")
    records = []
    for i in range(calls):
        columns: dict[str, Any] = dict(request=None, prompt_tokens=2 * i + 1)
        columns["prompt_digest"] = xxhash.xxh3_128_digest(whole[: 2 * i + 1].tobytes())
        if i:
            columns |= dict(parent_call_id=f"c{i - 1}", prompt_shared=2 * i, messages_shared=1)
            columns["message_suffix"] = []
        record = worker.record(f"c{i}", [i], [i], [message("start")], (), None, "e1", 0, 0, columns)
        records.append(record)
    worker.segment.append(records)


def test_a_chain_of_5000_calls_is_sealed_read_and_checked_in_linear_time(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    chain(worker, 5_000)
    worker.die()
    start = time.process_time()
    seal(tmp_path)
    log = read_log(tmp_path)
    lengths = [len(ids) for key in log.row_keys() if (ids := log.prompt_ids(*key)) is not None]
    assert lengths == list(range(1, 10_000, 2))
    report = check(tmp_path)
    assert (report.ok, report.counts["prompts"]) == (True, 5_000)
    assert time.process_time() - start < 15
