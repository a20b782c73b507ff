"""The scripted model, by conversations like those of real agents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engines.agent_script import AgentScript, Step
from tests.engines.script import Answer, Request

Json = dict[str, Any]


def function(name: str, *required: str, more: tuple[str, ...] = ()) -> Json:
    known = {argument: {"type": "string"} for argument in (*required, *more)}
    parameters = {"type": "object", "properties": known, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CLAUDE = [
    function("Agent", "description", "prompt", more=("run_in_background",)),
    function("Bash", "command"),
]
CODEX = [
    function("exec_command", "cmd", more=("max_output_tokens",)),
    function("multi_agent_v1__spawn_agent", more=("message", "model")),
    function("multi_agent_v1__wait_agent", "targets"),
]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def ask(script: AgentScript, messages: list[Json], tools: list[Json] | None = None) -> Answer:
    body = json.dumps({"messages": messages, "tools": CLAUDE if tools is None else tools}).encode()
    return script(Request(method="POST", path="/v1/chat/completions", headers={}, body=body, reused=False))


def said(answer: Answer) -> Json:
    functions = [
        {"id": c.id, "function": {"name": c.name, "arguments": c.arguments}} for c in answer.tool_calls
    ]
    return {"role": "assistant", "content": answer.text, "tool_calls": functions}


def calls(answer: Answer) -> list[tuple[str, Json]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


def test_it_uses_the_tools_that_it_is_offered() -> None:
    step = Step(
        commands=("ls",), delegates=("SUB: look",), arguments={"run_in_background": False, "timeout": 3}
    )
    there = {"description": "a part of the work", "prompt": "SUB: look", "run_in_background": False}
    claude = ask(AgentScript({"MAIN": (step,)}), [user("MAIN")])
    assert calls(claude) == [("Bash", {"command": "ls # MAIN-1"}), ("Agent", there)]
    codex = ask(AgentScript({"MAIN": (step,)}), [user("MAIN")], CODEX)
    assert calls(codex) == [
        ("exec_command", {"cmd": "ls # MAIN-1"}),
        ("multi_agent_v1__spawn_agent", {"message": "SUB: look"}),
    ]


def test_a_tool_that_is_missing_fails_the_test() -> None:
    with pytest.raises(LookupError, match="spawn_agent"):
        ask(AgentScript({"MAIN": (Step(delegates=("SUB",)),)}), [user("MAIN")], CLAUDE[1:])


def test_it_waits_for_the_agents_that_it_was_told_of() -> None:
    script = AgentScript({"MAIN": (Step(delegates=("SUB",)), Step(waits=True))})
    history = [user("MAIN"), said(ask(script, [user("MAIN")], CODEX))]
    history += [
        {"role": "tool", "content": '{"agent_id": "a1"}'},
        {"role": "tool", "content": '{"agent_id":"a2"}'},
    ]
    assert calls(ask(script, history, CODEX)) == [("multi_agent_v1__wait_agent", {"targets": ["a1", "a2"]})]


def test_each_agent_gets_its_own_next_step_whatever_came_between() -> None:
    script = AgentScript(
        {
            "MAIN": (Step(delegates=("SUB: look",)), Step(commands=("ls",)), Step(text="done")),
            "SUB": (Step(commands=("pwd",)), Step(text="found")),
        }
    )
    main, sub = [user("MAIN")], [user("SUB: look")]
    main.append(said(ask(script, main)))
    sub.append(said(ask(script, sub)))
    second, found = ask(script, main), ask(script, sub)
    assert calls(second) == [("Bash", {"command": "ls # MAIN-2"})] and found.text == "found (SUB-2)"
    main += [said(second), {"role": "tool", "content": found.text}]
    assert ask(script, main).text == ask(script, main).text == "done (MAIN-3)"
    main += [said(ask(script, main)), user("<task-notification>SUB ended</task-notification>")]
    assert ask(script, main).text == "there is nothing left to do (MAIN-4)"


def test_a_history_that_was_summed_up_goes_on_where_it_was() -> None:
    script = AgentScript({"MAIN": (Step(commands=("ls",)), Step(commands=("pwd",)))})
    history = [user("MAIN"), said(ask(script, [user("MAIN")]))]
    wanted = "Write no code. Your task is to create a detailed summary of it all, in a <summary> block."
    reminder = {"role": "system", "content": "by the way"}
    summary = ask(script, [*history, user(wanted), reminder])
    assert summary.text.startswith("<summary>\nSo far") and "MAIN-1 in short" in summary.text
    assert ask(script, history, []).text.startswith("So far")
    assert calls(ask(script, [user(f"It went like this: {summary.text}")])) == [
        ("Bash", {"command": "pwd # MAIN-2"})
    ]


def test_the_first_tries_fail_as_the_step_says() -> None:
    step = Step(text="done", faults=({"status": 429}, {"cut_after": 3}), how={"delay": 0.5}, reports=195_000)
    script = AgentScript({"MAIN": (step,)})
    tries = [ask(script, [user("MAIN")]) for _ in range(3)]
    assert [(answer.status, answer.cut_after) for answer in tries] == [(429, None), (200, 3), (200, None)]
    assert {answer.delay for answer in tries} == {0.5}
    usage = tries[2].usage
    assert usage and usage["prompt_tokens"] == 195_000
    assert usage["completion_tokens"] == len(tries[2].output_ids)
