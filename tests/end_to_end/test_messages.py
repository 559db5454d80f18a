"""Messages with Anthropic's own client against the real server, engine and LLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from tests.support.truss_process import Served

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message


class Weather(BaseModel):
    """Get the weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


TOOL: Any = {
    **{"name": "weather", "description": "Get the weather of a city."},
    "input_schema": Weather.model_json_schema(),
}
HELLO: Any = {"role": "user", "content": "What is the weather in Paris?"}
GREEDY = {"temperature": 0}
ASKED: dict[str, Any] = {
    **{"model": "", "max_tokens": 24, "messages": [HELLO], "extra_body": GREEDY},
}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[anthropic.Anthropic]:
    import anthropic  # takes two seconds

    url = f"http://127.0.0.1:{server.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def text_of(message: Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def prompt_tokens(message: Message) -> int:
    cached = message.usage.cache_read_input_tokens
    assert cached is not None
    return message.usage.input_tokens + cached


def test_a_message_and_its_stream(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "system": "Answer in one sentence."}
    message = client.messages.create(**asked)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 0 < message.usage.output_tokens <= 24
    assert prompt_tokens(message) > 10
    prompt = {name: asked[name] for name in ("model", "system", "messages")}
    assert client.messages.count_tokens(**prompt).input_tokens == prompt_tokens(message)
    assert message.id == f"msg_{message._request_id}"
    with client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == text_of(streamed)
    assert streamed.stop_reason in ("end_turn", "max_tokens")
    assert prompt_tokens(streamed) == prompt_tokens(message)
    with client.messages.create(**asked, stream=True) as events:
        start = next(iter(events))
    assert start.type == "message_start"
    assert prompt_tokens(start.message) == prompt_tokens(message)


def test_a_stop_sequence_ends_a_prefilled_message(client: anthropic.Anthropic) -> None:
    begun = {"role": "assistant", "content": "One, two, three, four,"}
    asked = {**ASKED, "messages": [{"role": "user", "content": "Count to nine."}, begun]}
    message = client.messages.create(**{**asked, "stop_sequences": ["seven", "END"]})
    assert text_of(message).strip() == "five, six,"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "seven")


def test_a_loop_of_two_turns(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "max_tokens": 80, "tools": [TOOL]}
    first = client.messages.create(**asked, tool_choice={"type": "tool", "name": "weather"})
    assert first.stop_reason == "tool_use"
    (call,) = first.content
    assert call.type == "tool_use"
    Weather.model_validate(call.input)
    with client.messages.stream(**asked, tool_choice={"type": "any"}) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    Weather.model_validate(streamed.input)
    assert streamed.id != call.id

    result = {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps({"degrees": 21})}
    messages = [
        HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    second = client.messages.create(
        **{**asked, "max_tokens": 12, "messages": messages}, tool_choice={"type": "none"}
    )
    assert text_of(second)


def test_structured_output(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(**{**ASKED, "max_tokens": 60}, output_format=Weather)
    assert isinstance(message.parsed_output, Weather)
    again = client.messages.create(
        **{
            **{**ASKED, "max_tokens": 4},
            "messages": [HELLO, {"role": "assistant", "content": message.content}, HELLO],
        }
    )
    assert again.content


def test_errors(client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as refused:
        client.beta.messages.create(**ASKED, container="c", betas=["b"])  # type: ignore[call-overload]
    assert refused.value.type == "invalid_request_error"
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
        client.messages.create(**{**ASKED, "messages": long})
    assert refused.value.request_id


def test_a_limit_beyond_the_context_is_cut_down(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "max_tokens": 64000, "stop_sequences": ["."]}
    message = client.messages.create(**asked, stream=False, timeout=60)
    assert message.stop_reason in ("stop_sequence", "end_turn")
