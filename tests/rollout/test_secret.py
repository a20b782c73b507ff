"""Keys do not get into what gyre says of an execution."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.proxy.log.live import TOKEN_ENV
from gyre.trainer.rollout.judge import last_words
from gyre.trainer.rollout.secret import Secrets, secrets_of
from tests.rollout.harnesses import Stage

TOKEN, KEY = "top-secret-token", "sk-0123456789"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    with Stage(tmp_path) as stage:
        yield stage


def test_what_is_a_secret() -> None:
    more = {
        "A_KEY": KEY,
        "HF_TOKEN": "hf_abcdefgh",
        "API_KEYS": f"{KEY}-more\n12345678",
        "DB_PASSWORD": "short",
    }
    plain = {"TOKENIZERS_PARALLELISM": "false-false", "KEYBOARD": "german-keys", "PATH": "/usr/bin"}
    secrets = secrets_of("t", more, plain)
    assert set(secrets.values) == {"t", KEY, "hf_abcdefgh", f"{KEY}-more", "12345678"}
    assert secrets_of(None, more).hide(f"({KEY}-more) {KEY} short \udcff") == "(***) *** short ?"


@pytest.mark.parametrize("cut", range(0, 120, 4))
def test_a_secret_at_the_edge_of_what_is_read_or_kept(tmp_path: Path, cut: int) -> None:
    secret = "0123456789abcdefghij"
    (tmp_path / "said").write_text("x" * 5000 + secret + "y" * (4096 - 20 + cut))
    (tmp_path / "long").write_text("z" * (200 - cut) + secret)
    for name in ("said", "long"):
        words = last_words(tmp_path / name, secrets=Secrets((secret,)))
        assert words and not any(secret[i : i + 3] in words for i in range(18))


def test_neither_record_nor_state_hold_a_key(stage: Stage) -> None:
    agent = "call(); write('a', ''); key, mine = map(os.environ.get, ('OPENAI_API_KEY', 'MY_KEY'))\n"
    agent += "print('key', key, mine); sys.exit(3)"
    scorer = f"echo scored with {KEY} and {TOKEN} >&2; exit 1"
    state = stage.run(stage.agent(agent), env={"MY_KEY": KEY}, score=scorer)
    reasons = [event["reason"] for event in stage.events()[1:]]
    failed = "the scorer failed: exit code 1: scored with *** and *** (in each of 2 tries)"
    assert reasons == ["exit code 3; key *** ***", failed]
    written = (stage.runs / "e1" / "execution.json").read_text() + json.dumps(stage.events())
    assert state.reason == failed and not any(key in written for key in (TOKEN, KEY))
    said = Path(state.stdout).read_text()
    assert said.startswith("key gyre-x-e1") and said.endswith(f" {KEY}\n") and TOKEN not in said


def test_a_fault_of_ours_tells_no_key(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*files: Path, secrets: Secrets) -> str:
        raise LookupError(TOKEN)

    monkeypatch.setattr("gyre.trainer.rollout.run.last_words", faulty)
    state = stage.run(stage.agent("call()"))
    assert state.reason == "a fault of gyre's own: LookupError: ***"
    assert "Traceback" in caplog.text and TOKEN not in caplog.text
