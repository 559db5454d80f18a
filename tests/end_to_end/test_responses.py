"""OpenAI's Responses with its own client against the real server, engine and LLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict
from tests.support.openai_types import check_response, check_response_event
from tests.support.truss_process import Served


class Weather(BaseModel):
    """Get the weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


QUESTION = "What is the weather in Paris?"
TOOL: Any = {
    **{"type": "function", "name": "Weather", "description": Weather.__doc__, "strict": True},
    "parameters": Weather.model_json_schema(),
}
ASKED: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 12}
CALLED: dict[str, Any] = {**ASKED, "max_output_tokens": 120, "tools": [TOOL]}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_text_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {**ASKED, "input": "Tell a long story.", "instructions": "Answer in long sentences."}
    raw = client.responses.with_raw_response.create(**asked)
    check_response(json.loads(raw.content))
    whole = raw.parse()
    assert whole.id == f"resp_{raw.headers['x-request-id']}"
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    assert whole.usage.input_tokens > 15

    events = list(client.responses.create(**asked, stream=True))
    for event in events:
        check_response_event(event.model_dump(exclude_unset=True, by_alias=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text
    assert events[-1].type == "response.incomplete"
    streamed = events[-1].response.usage
    assert streamed is not None
    assert streamed.total_tokens == whole.usage.total_tokens
    assert streamed.input_tokens > streamed.input_tokens_details.cached_tokens >= 0


@pytest.mark.engines("cpu", "1.3.0")  # the C++ sampler of 1.2 reports no alternatives
def test_log_probs(client: openai.OpenAI) -> None:
    asked = {**ASKED, "input": "Say hello.", "include": ["message.output_text.logprobs"]}
    (item,) = client.responses.create(**asked).output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.text == "".join(token.token for token in part.logprobs or ())
    assert all(token.logprob <= 0 for token in part.logprobs or ())
    (item,) = client.responses.create(**asked, top_logprobs=3).output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    for token in part.logprobs or ():
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.logprob


def test_a_type_is_parsed(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_output_tokens": 60, "input": QUESTION}
    response = client.responses.parse(**asked, text_format=Weather)
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Weather)


def test_a_loop_of_two_turns(client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.responses.stream(**CALLED, input=items, tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert first.status == "completed"
    items += first.output
    for call in first.output:
        assert call.type == "function_call"
        assert call.call_id.startswith("call_")
        Weather.model_validate_json(call.arguments)
        items.append(
            {"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": 21}'}
        )
    assert len(items) > 2
    second = client.responses.create(**{**CALLED, "max_output_tokens": 12}, input=items)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + 20
    again = client.responses.create(**ASKED, input=[*items, *second.output, *items[:1]])
    assert again.output_text


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the earlier items"),
        ({"background": True}, "background", "answers are not stored"),
        ({"tools": [{"type": "web_search"}]}, "tools", "this server searches nothing"),
        ({"extra_body": {"nonsense": 1}}, "nonsense", "is not a field of this request"),
        (
            {"input": [{"role": "user", "content": "word " * 9000}]},
            "input",
            "This model's maximum context length is 8192 tokens. However, input is",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    client: openai.OpenAI, fields: Any, param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{**ASKED, "input": "Hi", **fields})
    assert raised.value.param == param
    assert message in str(raised.value)
