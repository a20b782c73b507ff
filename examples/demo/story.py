"""The agent: a writer and an editor built with the published package openai-agents, unmodified.

The only thing it knows of gyre is a base URL. The writer keeps one conversation and is streamed,
the editor keeps another and is not: two contexts that grow inside one execution. The model has
135 million parameters, so do not expect literature.
"""

from __future__ import annotations

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.items import TResponseInputItem
from openai import AsyncOpenAI

ROUNDS = 4
FIRST_TASK = (
    "Write the first two sentences of a story about a lighthouse keeper who finds a message in a bottle."
)


async def write_story(base_url: str, model: str) -> None:
    """Draft, then take the editor's remark and revise, ROUNDS times over."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    writer, editor = make_agents(OpenAIChatCompletionsModel(model=model, openai_client=client))
    writing: list[TResponseInputItem] = [{"role": "user", "content": FIRST_TASK}]
    editing: list[TResponseInputItem] = []
    for turn in range(ROUNDS):
        draft, writing = await stream(writer, writing)
        if turn == ROUNDS - 1:
            break
        editing.append({"role": "user", "content": f"Draft {turn + 1}: {draft}"})
        remark, editing = await ask(editor, editing)
        writing.append({"role": "user", "content": f"The editor says: {remark} Continue the story."})
    await client.close()


def make_agents(model: OpenAIChatCompletionsModel) -> tuple[Agent, Agent]:
    def settings(max_tokens: int) -> ModelSettings:
        return ModelSettings(max_tokens=max_tokens, temperature=1.0, extra_args={"seed": 20})

    writer = Agent(
        name="writer",
        instructions="You are a writer of short stories. Answer with the story only.",
        model=model,
        model_settings=settings(60),
    )
    editor = Agent(
        name="editor",
        instructions="You are an editor. Say in one sentence what the draft should do next.",
        model=model,
        model_settings=settings(30),
    )
    return writer, editor


async def stream(agent: Agent, items: list[TResponseInputItem]) -> tuple[str, list[TResponseInputItem]]:
    """One streamed turn: the text is printed as it arrives."""
    print(f"\n{agent.name}: ", end="")
    result = Runner.run_streamed(agent, items)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print()
    return str(result.final_output), result.to_input_list()


async def ask(agent: Agent, items: list[TResponseInputItem]) -> tuple[str, list[TResponseInputItem]]:
    """One plain turn."""
    result = await Runner.run(agent, items)
    print(f"\n{agent.name}: {result.final_output}")
    return str(result.final_output), result.to_input_list()
