"""Frameworks: guidance, LlamaIndex, Pydantic AI, OpenAI's Agents SDK, smolagents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Example = Callable[..., dict[str, Any]]


def test_guidance(example: Example) -> None:
    ran = example("guidance")
    assert ran["model"]["text"]
    ran["Weather"].model_validate_json(ran["model"]["weather"])


def test_llama_index(example: Example) -> None:
    ran = example("LlamaIndex")
    assert isinstance(ran["structured"].raw, ran["Weather"])
    assert str(ran["called"]).startswith("21 degrees in ")
    (source,) = ran["called"].sources
    assert source.raw_input["kwargs"]["city"] in ("Oslo", "Paris", "Rome")
    texts = [chunk.delta or "" for chunk in ran["llm"].stream_complete("Say hello.")]
    assert "ello" in "".join(texts)
    assert len(texts) > 1


def test_pydantic_ai(example: Example) -> None:
    ran = example("Pydantic AI")
    assert isinstance(ran["run"].output, ran["Weather"])
    assert ran["run"].usage.output_tokens > 5
    asked, answered, returned = ran["run"].all_messages()
    assert asked.parts[0].content == ran["QUESTION"]
    assert answered.parts[0].tool_call_id == returned.parts[0].tool_call_id
    again = ran["agent"].run_sync("And in Rome?", message_history=ran["run"].all_messages())
    assert isinstance(again.output, ran["Weather"])


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_pydantic_ai_with_a_schema(example: Example, responses: bool) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIResponsesModel

    ran = example("Pydantic AI")
    model = ran["model"]
    if responses:
        model = OpenAIResponsesModel("any", provider=model._provider)
    settings: Any = {"max_tokens": 100, "temperature": 0}
    agent = Agent(model, output_type=NativeOutput(ran["Weather"]), model_settings=settings)
    assert isinstance(agent.run_sync(ran["QUESTION"]).output, ran["Weather"])


async def test_pydantic_ai_streams(example: Example) -> None:
    ran = example("")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=ran["BASE_URL"], api_key="none")
    settings: Any = {"max_tokens": 100, "temperature": 0}
    agent = Agent(
        OpenAIChatModel("any", provider=provider),
        output_type=ran["Weather"],
        model_settings=settings,
    )
    async with agent.run_stream(ran["QUESTION"]) as run:
        outputs = [output async for output in run.stream_output(debounce_by=None)]
    assert isinstance(outputs[-1], ran["Weather"])


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_openai_agents(example: Example, responses: bool) -> None:
    from agents import OpenAIChatCompletionsModel, Runner

    ran = example("OpenAI's Agents SDK")
    run = ran["run"]
    if not responses:
        model = OpenAIChatCompletionsModel("any", openai_client=ran["client"])
        run = Runner.run_sync(ran["agent"].clone(model=model), ran["QUESTION"])
    called, returned, *_ = run.new_items
    assert returned.output.startswith("21 degrees in ")
    assert returned.raw_item["call_id"] == called.raw_item.call_id
    assert run.final_output
    assert all(response.usage.output_tokens > 0 for response in run.raw_responses)


def test_smolagents(example: Example) -> None:
    ran = example("smolagents")
    messages = [{"role": "user", "content": ran["QUESTION"]}]
    message = ran["model"].generate(messages, tools_to_call_from=[ran["weather"]])
    (call,) = message.tool_calls
    assert call.id
    assert call.function.name == "weather"
    assert message.token_usage.output_tokens > 5
    agent = ran["agent"]
    agent.max_steps = 1
    agent.run(ran["QUESTION"])
    step = agent.memory.steps[1]
    assert step.error is None
    assert step.tool_calls
