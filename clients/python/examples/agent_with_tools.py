"""An agent with two tools, by the openai-agents library, over chat completions or the WebSocket.

Needs a package that Paceline does not bring: pip install openai-agents
It brings `openai` and what the WebSocket takes.

python agent_with_tools.py [http://127.0.0.1:8765] [chat|socket]
"""

from __future__ import annotations

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def add(first: int, second: int) -> int:
    """The sum of two whole numbers."""
    return first + second


@function_tool
def capital_of(country: str) -> str:
    """The capital of a country."""
    return {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}.get(country, "unknown")


async def main(address: str, transport: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="not needed")
    name = (await client.models.list()).data[0].id
    model: OpenAIChatCompletionsModel | OpenAIResponsesWSModel
    if transport == "socket":
        model = OpenAIResponsesWSModel(name, client)
    else:
        model = OpenAIChatCompletionsModel(name, client)
    agent = Agent(
        name="Assistant",
        instructions="Answer in one sentence. Use the tools.",
        model=model,
        tools=[add, capital_of],
        model_settings=ModelSettings(temperature=0, max_tokens=200),
    )
    result = await Runner.run(agent, "What is 17 + 25?", max_turns=5)
    print(result.final_output)
    print(f"{len(result.raw_responses)} turns, {result.context_wrapper.usage.output_tokens} tokens")
    if isinstance(model, OpenAIResponsesWSModel):
        await model.close()
    await client.close()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(
        main(
            arguments[0] if arguments else "http://127.0.0.1:8765",
            arguments[1] if len(arguments) > 1 else "chat",
        )
    )
