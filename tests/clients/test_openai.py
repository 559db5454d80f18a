"""OpenAI's clients in Python and Node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

Example = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)


def test_the_page(example: Example) -> None:
    ran = example("OpenAI in Python")
    first = ran["first"]
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, ran["Weather"])
    assert ran["messages"][-1]["tool_call_id"] == call.id
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert ran["second"].choices[0].message.content
    assert ran["second"].usage.prompt_tokens > 20
    assert isinstance(ran["parsed"].choices[0].message.parsed, ran["Weather"])
    response = ran["response"]
    assert response.output_text
    assert response.status in ("completed", "incomplete")
    assert response.usage.output_tokens > 0


def test_serve_lists_one_model(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id
    assert model.object == "model"


def test_a_message_with_what_the_client_parsed_is_accepted(example: Example) -> None:
    ran = example("OpenAI in Python")
    conversation = [*ran["messages"][:1], ran["parsed"].choices[0].message]
    conversation.append({"role": "user", "content": "And in Rome?"})
    again = ran["client"].chat.completions.parse(
        messages=conversation, response_format=ran["Weather"], **ran["asked"]
    )
    assert isinstance(again.choices[0].message.parsed, ran["Weather"])


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_streamed_call(client: openai.OpenAI, choice: str, example: Example) -> None:
    kind = example("")["Weather"]
    named: Any = {"type": "function", "function": {"name": "Weather"}}
    with client.chat.completions.stream(
        model="any",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[openai.pydantic_function_tool(kind)],
        tool_choice=named if choice == "named" else "required",
        stream_options={"include_usage": True},
        max_tokens=100,
        temperature=0,
    ) as stream:
        deltas = [
            event.arguments_delta
            for event in stream
            if event.type == "tool_calls.function.arguments.delta"
        ]
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    assert len(deltas) > 1
    assert "".join(deltas) == call.function.arguments
    assert isinstance(call.function.parsed_arguments, kind)
    assert call.id
    assert final.usage is not None
    assert final.usage.completion_tokens > 5


def test_a_loop_of_two_turns_with_responses(client: openai.OpenAI, example: Example) -> None:
    kind = example("")["Weather"]
    tool: Any = {
        **{"type": "function", "name": "weather", "strict": False},
        "parameters": kind.model_json_schema(),
    }
    asked: dict[str, Any] = {
        **{"model": "any", "max_output_tokens": 100, "temperature": 0, "tools": [tool]},
    }
    turns: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.responses.create(input=turns, tool_choice="required", **asked)
    calls = [item for item in first.output if item.type == "function_call"]
    assert len(calls) == 1
    kind.model_validate_json(calls[0].arguments)
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "21 degrees"}
    turns += [*first.output, result]
    second = client.responses.create(input=turns, tool_choice="none", **asked)
    assert second.output_text


def test_streamed_and_parsed_responses(client: openai.OpenAI, example: Example) -> None:
    kind = example("")["Weather"]
    asked: dict[str, Any] = {"model": "any", "max_output_tokens": 100, "temperature": 0}
    parsed = client.responses.parse(text_format=kind, input="The weather in Paris?", **asked)
    assert isinstance(parsed.output_parsed, kind)
    with client.responses.stream(input="Say hello.", **asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text


def test_the_page_in_node(node_example: Callable[[str, str], Any]) -> None:
    ran = node_example("OpenAI in Node", "{ turns: runner.messages, parsed }")
    question, asked, result = ran["turns"]
    assert question["role"] == "user"
    (call,) = asked["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "unit"}
    assert result == {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
    parsed = ran["parsed"]
    assert parsed["choices"][0]["message"]["parsed"].keys() == {"city", "unit"}
    assert parsed["usage"]["completion_tokens"] > 5
