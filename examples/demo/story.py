"""The agent: a writer and an editor built with the published package openai-agents, unmodified.

The only thing it knows of gyre is a base URL. The writer keeps one conversation and is streamed,
the editor keeps another and is not: two contexts that grow inside one execution. At the end the
writer's history is replaced by a summary, as agents do whose context is full. The model has 135
million parameters, so do not expect literature.
"""

from __future__ import annotations

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.items import TResponseInputItem
from openai import AsyncOpenAI

Items = list[TResponseInputItem]

ROUNDS = 3
SEED = 40
TASK = "Write the first two sentences of a story about a lighthouse keeper who finds a message in a bottle."
SUMMARISE = "Summarise the story so far in two sentences."


async def write_story(base_url: str, model: str) -> None:
    """Draft, take the editor's remark, go on: ROUNDS drafts with a remark between each two; then the end."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    writer, editor = make_agents(OpenAIChatCompletionsModel(model=model, openai_client=client))
    writing: Items = [{"role": "user", "content": TASK}]
    editing: Items = []
    for turn in range(1, ROUNDS):
        draft, writing = await stream(writer, writing, turn)
        editing.append({"role": "user", "content": f"Draft {turn}: {draft}"})
        remark, editing = await ask(editor, editing, turn)
        writing.append(
            {"role": "user", "content": f"The editor says: {remark} Write the next two sentences."}
        )
    _, writing = await stream(writer, writing, ROUNDS)
    writing.append({"role": "user", "content": SUMMARISE})
    summary, _ = await ask(writer, writing, ROUNDS + 1)
    rest: Items = [{"role": "user", "content": f"The story so far: {summary} Write the last two sentences."}]
    await stream(writer, rest, ROUNDS + 2)
    await client.close()


def make_agents(model: OpenAIChatCompletionsModel) -> tuple[Agent, Agent]:
    writer = Agent(
        name="writer",
        instructions="You write short stories for children, in plain English.",
        model=model,
        model_settings=ModelSettings(max_tokens=60),
    )
    editor = Agent(
        name="editor",
        instructions="You are an editor. Say in one sentence what the story needs next, in plain English.",
        model=model,
        model_settings=ModelSettings(max_tokens=30),
    )
    return writer, editor


def config(turn: int) -> RunConfig:
    """Sampling, with a seed so that the demo is about the same each time."""
    settings = ModelSettings(temperature=1.0, extra_args={"seed": SEED + turn})
    return RunConfig(model_settings=settings, tracing_disabled=True)


async def stream(agent: Agent, items: Items, turn: int) -> tuple[str, Items]:
    """One streamed turn: the text is printed as it arrives."""
    print(f"\n{agent.name}: ", end="")
    result = Runner.run_streamed(agent, items, run_config=config(turn))
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print()
    return str(result.final_output), result.to_input_list()


async def ask(agent: Agent, items: Items, turn: int) -> tuple[str, Items]:
    """One plain turn."""
    result = await Runner.run(agent, items, run_config=config(turn))
    print(f"\n{agent.name}: {result.final_output}")
    return str(result.final_output), result.to_input_list()
