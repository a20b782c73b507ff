"""vLLM and SGLang over their control routes: what is asked in which order, and what is said of refusals."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.launch import launch
from gyre.elastic.engines.logprobs import check_logprobs
from gyre.elastic.engines.options import EngineOptions, InFlight
from gyre.elastic.engines.sglang import Sglang
from gyre.elastic.engines.tokenizer import FILE, PROBE, check_tokenizer, ids_of_probe
from gyre.elastic.engines.transfer import Client, FromMemory, Source, meeting_place
from gyre.elastic.engines.vllm import ENV, Vllm
from gyre.proxy.errors import EngineError
from tests.elastic.models import folder
from tests.elastic.server import ControlServer, SglangControl, VllmControl

ROOT = Path(__file__).parents[2]


def options(in_flight: InFlight = "keep", **more: Any) -> EngineOptions:
    return EngineOptions(model="policy", in_flight=in_flight, **more)


def routes(server: ControlServer) -> list[str]:
    return [route for route, _ in server.asked]


def test_vllm_is_frozen_while_it_takes_up_weights(tmp_path: Path) -> None:
    with VllmControl() as server:
        engine = Vllm("e", options(), server.url)
        engine.publish(tmp_path, "7")
        assert routes(server) == [
            "POST /pause?mode=keep",
            "POST /collective_rpc",
            "POST /reset_prefix_cache?reset_running_requests=false",
            "POST /update_weight_version",
            "POST /resume",
        ]
        assert server.folder == str(tmp_path.resolve())
        assert engine.weights().version == "7"


def test_vllm_computes_anew_what_runs_where_that_is_wanted(tmp_path: Path) -> None:
    with VllmControl() as server:
        Vllm("e", options("recompute"), server.url).publish(tmp_path, "7")
        assert "POST /reset_prefix_cache?reset_running_requests=true" in routes(server)
        server.routes["POST /reset_prefix_cache"] = (200, {"success": False})
        del server.routes["POST /reset_prefix_cache?reset_running_requests=true"]
        with pytest.raises(EngineError, match="does not forget") as caught:
            Vllm("e", options("recompute"), server.url).publish(tmp_path, "8")
        assert 'in_flight = "keep"' in caught.value.hint


def test_vllm_may_keep_prefixes_while_answers_run(tmp_path: Path) -> None:
    with VllmControl() as server:
        server.running = True
        Vllm("e", options(), server.url).publish(tmp_path, "7")
        assert server.version == "7"


@pytest.mark.parametrize(("kind", "fake"), [(Vllm, VllmControl), (Sglang, SglangControl)])
def test_one_that_was_paused_stays_so(
    tmp_path: Path, kind: type[Vllm] | type[Sglang], fake: type[VllmControl] | type[SglangControl]
) -> None:
    with fake() as server:
        engine = kind("e", options(), server.url)
        engine.pause()
        engine.publish(tmp_path, "7")
        assert not {"POST /resume", "POST /continue_generation"} & set(routes(server))
        engine.resume()
        assert routes(server)[-1] in ("POST /resume", "POST /continue_generation")


@pytest.mark.parametrize(("kind", "fake"), [(Vllm, VllmControl), (Sglang, SglangControl)])
def test_one_that_runs_already_has_its_first_weights_published(
    tmp_path: Path, kind: type[Vllm] | type[Sglang], fake: type[VllmControl] | type[SglangControl]
) -> None:
    with fake() as server:
        engine = kind("e", options(), server.url)
        engine.start(tmp_path, "0")
        assert (server.folder, engine.weights().version) == (str(tmp_path.resolve()), "0")
        assert not engine.owned and engine.alive()
    assert not engine.alive()


def test_vllm_on_a_cpu_needs_our_extension_to_reload_all_weights(tmp_path: Path) -> None:
    with VllmControl() as server:
        server.device = "cpu"
        with pytest.raises(EngineError, match="does not reload all weights") as caught:
            Vllm("e", options(), server.url).start(tmp_path, "0")
        assert "--worker-extension-cls gyre_vllm.Reload" in caught.value.hint
        server.extended = True
        Vllm("e", options(), server.url).start(tmp_path, "0")
        assert (server.folder, server.version) == (str(tmp_path.resolve()), "0")


def test_a_transfer_that_needs_vllm_here_is_refused_before_anything_stands_still(tmp_path: Path) -> None:
    """The tests have it in an environment of its own."""
    with VllmControl() as server:
        with pytest.raises(EngineError, match="vLLM's own sender, which is not installed here"):
            Vllm("e", options(), server.url, FromMemory("nccl")).start(tmp_path, "0")
        assert not any("/pause" in route for route in routes(server))


def test_nothing_goes_on_after_weights_that_came_in_half(tmp_path: Path) -> None:
    with VllmControl() as server:
        server.routes["POST /collective_rpc"] = (500, {"error": {"message": "out of memory"}})
        with pytest.raises(EngineError, match=r"answers 500 .*/collective_rpc`: out of memory") as caught:
            Vllm("e", options(), server.url).publish(tmp_path, "7")
        assert f"`{server.url}` stays paused" in caught.value.hint
        assert "POST /resume" not in routes(server) and server.version == "default"


def test_sglang_keeps_what_runs_in_place(tmp_path: Path) -> None:
    with SglangControl() as server:
        server.running = True
        engine = Sglang("e", options(), server.url)
        engine.publish(tmp_path, "7")
        assert server.asked == [
            ("POST /pause_generation", {"mode": "in_place"}),
            (
                "POST /update_weights_from_disk",
                {
                    "model_path": str(tmp_path.resolve()),
                    "weight_version": "7",
                    "abort_all_requests": False,
                    "flush_cache": False,
                },
            ),
            ("POST /flush_cache", None),
            ("POST /continue_generation", {}),
        ]
        assert engine.weights().version == "7"


def test_sglang_takes_back_into_the_queue_what_is_computed_anew(tmp_path: Path) -> None:
    with SglangControl() as server:
        Sglang("e", options("recompute"), server.url).publish(tmp_path, "7")
        bodies = dict(server.asked)
        assert bodies["POST /pause_generation"] == {"mode": "retract"}
        assert bodies["POST /update_weights_from_disk"]["flush_cache"] is True
        assert "POST /flush_cache" not in bodies


def test_sglangs_own_words_say_why_it_takes_up_nothing(tmp_path: Path) -> None:
    with SglangControl() as server:
        refusal = {"success": False, "message": "Failed to get weights iterator.", "num_paused_requests": 0}
        server.routes["POST /update_weights_from_disk"] = (400, refusal)
        with pytest.raises(EngineError, match=r"answers 400 .*: Failed to get weights iterator"):
            Sglang("e", options(), server.url).publish(tmp_path, "7")


def test_a_route_that_is_not_there_says_what_is_missing(tmp_path: Path) -> None:
    with ControlServer({}) as server:
        with pytest.raises(EngineError, match=r"has no POST `.*/pause.mode=keep`") as caught:
            Vllm("e", options(), server.url).publish(tmp_path, "7")
        assert "VLLM_SERVER_DEV_MODE=1" in caught.value.hint
        with pytest.raises(EngineError) as caught:
            Sglang("e", options(), server.url).pause()
        assert "SGLang 0.5.23" in caught.value.hint


def test_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"engine `e` is not reached: POST `{url}/pause"):
        Vllm("e", options(), url).publish(tmp_path, "7")


def test_one_that_does_not_answer_in_time_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection("e", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EngineError, match=r"does not answer GET .* within 0\.1 s") as caught:
            connection.ask("GET", "/weight_info", timeout_s=0.1)
        assert "engine.publish_timeout" in caught.value.hint
        assert connection.healthy() is None


def test_one_that_says_it_is_ill_counts_as_dead(tmp_path: Path) -> None:
    with VllmControl() as server:
        server.routes["GET /health"] = (503, "")
        assert not Vllm("e", options(), server.url).alive()


def test_one_of_the_users_command_reads_the_newest_weights_from_the_same_path(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "tests.elastic.program", "{model}", "{port}", '{"a": {"b": 1}}']
    env = {**ENV, "PYTHONPATH": str(ROOT)}
    how = launch("e", command, env, served=tmp_path / "out" / "served", output=tmp_path / "out")
    engine = Vllm("e", options(start_timeout_s=60), how)
    told = Connection("e", engine.url)
    try:
        assert engine.owned
        engine.start(tmp_path / "first", "0")
        assert told.ask("GET", "/about")["real"] == str(tmp_path / "first")
        assert engine.weights().version == "0"
        engine.start(tmp_path / "second", "1")
        assert told.ask("GET", "/about")["real"] == str(tmp_path / "second")
    finally:
        engine.stop()
    assert not engine.alive()


def test_log_probabilities_are_read_in_the_form_of_each() -> None:
    prompt, expected = [4, 5, 6], [-1.0, -2.5]
    openai = [None, {"5": {"logprob": -1.0}}, {"6": {"logprob": -2.0}, "9": {"logprob": -0.1}}]
    sglang = [[None, 4, None], [-1.0, 5, None], [-2.0, 6, None]]
    answers = {
        "POST /v1/completions": (200, {"choices": [{"prompt_logprobs": openai}]}),
        "POST /generate": (200, {"meta_info": {"input_token_logprobs": sglang}}),
    }
    with ControlServer(answers) as server:
        for engine in (Vllm("e", options(), server.url), Sglang("e", options(), server.url)):
            assert check_logprobs(engine, "policy", prompt, expected) == pytest.approx(0.25)
            with pytest.raises(EngineError, match=r"0\.25 nats"):
                check_logprobs(engine, "policy", prompt, expected, most=0.2)
            with pytest.raises(EngineError, match="told 2 log-probabilities of 1"):
                check_logprobs(engine, "policy", prompt, [-1.0])


@pytest.mark.parametrize("kind", [Vllm, Sglang])
def test_an_engine_with_another_tokenizer_is_told(tmp_path: Path, kind: type[Vllm] | type[Sglang]) -> None:
    own = Tokenizer.from_file(str(folder(0) / FILE)).encode(PROBE).ids
    with ControlServer({"POST /tokenize": (200, {"tokens": own, "count": len(own)})}) as server:
        engine = kind("e", options(), server.url)
        check_tokenizer(engine, "policy", folder(0))
        assert server.asked[0][1] == {"model": "policy", "prompt": PROBE, "add_special_tokens": False}
        server.routes["POST /tokenize"] = (200, {"tokens": own[:-1]})
        with pytest.raises(EngineError, match=f"makes {len(own) - 1} tokens of a text that has {len(own)}"):
            check_tokenizer(engine, "policy", folder(0))
        check_tokenizer(engine, "policy", tmp_path)


def test_a_tokenizer_of_the_older_form_is_read_too(tmp_path: Path) -> None:
    """As GPT-2's: a vocabulary and its merges in two files."""
    assert ids_of_probe(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert ids_of_probe(tmp_path) is None
    own = json.loads((folder(0) / FILE).read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(own["vocab"]))
    merges = [" ".join(pair) for pair in own["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert ids_of_probe(tmp_path) == ids_of_probe(folder(0))


def test_handles_of_gpu_memory_go_through_json(tmp_path: Path) -> None:
    done = (200, {"message": "ok"})
    with ControlServer({"POST /update_weights": done, "POST /finish_weight_update": done}) as server:
        client = Client(Connection("e", server.url), 5)
        client.update_weights({"names": ["w"], "ipc_handles": {"GPU-0": (1, b"x")}, "tensor_sizes": None})
        client.finish_weight_update("7")
        (_, update), (_, finish) = server.asked
    assert set(update["update_info"]) == {"names", "ipc_handles_pickled"}
    assert finish == {"weight_version": "7"}


def test_tensors_to_be_sent_are_those_of_the_folder() -> None:
    source = Source()
    source.folder = folder(0)
    told = {meta.name: meta.shape for meta in source.metadata()}
    assert told["model.embed_tokens.weight"] == (2048, 128)
    assert all(meta.dtype is not None for meta in source.metadata())


def test_an_engine_here_is_met_here() -> None:
    host, port = meeting_place("http://127.0.0.1:8000")
    assert host == "127.0.0.1" and port > 0
