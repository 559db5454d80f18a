"""Tool calls of OpenAI's client against the real server, engine and LLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from pydantic import BaseModel, ConfigDict
from tests.support.truss_process import Served


class Weather(BaseModel):
    """Get the weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


class Time(BaseModel):
    """Get the time of a city."""

    model_config = ConfigDict(extra="forbid")
    zone: Literal["CET", "UTC"]


HELLO = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [openai.pydantic_function_tool(kind) for kind in (Weather, Time)]
KINDS: dict[str, type[BaseModel]] = {"Weather": Weather, "Time": Time}
CHAT: dict[str, Any] = {
    **{"model": "", "messages": HELLO, "tools": TOOLS, "temperature": 0, "max_tokens": 120},
}
NAMED = {"type": "function", "function": {"name": "Time"}}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def only_call(message: ChatCompletionMessage) -> tuple[str, BaseModel]:
    assert message.content is None
    (call,) = message.tool_calls or ()
    assert call.type == "function"
    assert call.id.startswith("call_")
    name = call.function.name
    return name, KINDS[name].model_validate_json(call.function.arguments)


@pytest.mark.parametrize(
    ("choice", "parallel"),
    [
        pytest.param("required", True, id="required, parallel"),
        pytest.param("required", False, id="required", marks=pytest.mark.thorough),
        pytest.param(NAMED, True, id="named, parallel", marks=pytest.mark.thorough),
        pytest.param(NAMED, False, id="named"),
    ],
)
def test_a_forced_call_satisfies_its_schema(
    client: openai.OpenAI, choice: Any, parallel: bool
) -> None:
    asked = {**CHAT, "tool_choice": choice, "parallel_tool_calls": parallel}
    whole: ChatCompletion = client.chat.completions.create(**asked)
    reason = "tool_calls" if choice == "required" else "stop"
    assert whole.choices[0].finish_reason == reason
    name, arguments = only_call(whole.choices[0].message)
    assert choice == "required" or name == "Time"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 5

    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in events
    assert streamed.finish_reason == reason
    assert only_call(streamed.message) == (name, arguments)  # type: ignore[arg-type]


def test_a_loop_of_two_turns(client: openai.OpenAI) -> None:
    messages: list[Any] = [*HELLO]
    first = client.chat.completions.parse(**{**CHAT, "messages": messages}, tool_choice="required")
    message = first.choices[0].message
    messages.append(message)
    for call in message.tool_calls or ():
        assert isinstance(call.function.parsed_arguments, Weather | Time)
        result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 21})}
        messages.append(result)
    second = client.chat.completions.create(**{**CHAT, "messages": messages}, tool_choice="none")
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None
    messages += [second.choices[0].message, {"role": "user", "content": "Thanks."}]
    third = client.chat.completions.create(**{**CHAT, "messages": messages})
    assert third.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_tools_are_described_to_a_model_without_tools_in_its_template(
    client: openai.OpenAI,
) -> None:
    short = {**CHAT, "max_tokens": 1}
    without = {name: value for name, value in short.items() if name != "tools"}
    usages = [client.chat.completions.create(**asked).usage for asked in (short, without)]
    assert usages[0] is not None
    assert usages[1] is not None
    assert usages[0].prompt_tokens > usages[1].prompt_tokens + 100


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client's own type
def test_parsing_with_the_message_appended(client: openai.OpenAI) -> None:
    asked = {name: value for name, value in CHAT.items() if name != "tools"}
    first = client.chat.completions.parse(**asked, response_format=Weather)
    message = first.choices[0].message
    assert isinstance(message.parsed, Weather)
    messages = [*HELLO, message, {"role": "user", "content": "And now?"}]
    again = client.chat.completions.parse(**{**asked, "messages": messages}, response_format=Time)
    assert isinstance(again.choices[0].message.parsed, Time)


def test_a_context_overflow_has_the_sentence_that_wrappers_match(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="", messages=long)  # type: ignore[arg-type]
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.body["message"].startswith(  # type: ignore[index]
        "This model's maximum context length is 8192 tokens. However, messages is"
    )
