"""A call that was begun and of which nothing more is known is in the log as interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gyre.proxy import read_log
from gyre.proxy.calls import Identity, Wire
from gyre.proxy.log.record.attempt import Attempt, Call
from gyre.proxy.log.record.recorder import Recorder
from gyre.proxy.settings import Log


def test_a_call_that_is_open_when_the_recorder_closes_is_interrupted(tmp_path: Path) -> None:
    async def scene() -> None:
        recorder = Recorder(tmp_path, "w1", Log())
        recorder.start()
        for name in ("c1", "c2"):
            call = Call(name, Identity("e1", "url"), 0, Wire.CHAT, "POST", "/v1/chat/completions")
            recorder.intend(Attempt(call, backend="b1"))
        await recorder.commit(Attempt(call, backend="b1"))
        await recorder.close(seal=False)

    asyncio.run(scene())
    rows = read_log(tmp_path).calls.to_pylist()
    assert {row["call_id"]: row["outcome"] for row in rows} == {"c1": "interrupted", "c2": "upstream_error"}
