"""Anthropic's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from tests.clients.scripted import QUESTION, READ, RESULT

Example = Callable[..., dict[str, Any]]
HELLO: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=f"http://{address}", api_key="none", max_retries=0, timeout=60
    )


def test_the_page(example: Example) -> None:
    ran = example("Anthropic")
    first, second = ran["first"], ran["second"]
    assert first.stop_reason == "tool_use"
    (call,) = (block for block in first.content if block.type == "tool_use")
    assert call.name == "weather"
    ran["Weather"].model_validate(call.input)
    assert ran["results"][0]["tool_use_id"] == call.id
    assert second.stop_reason in ("end_turn", "max_tokens")
    assert second.content[0].text
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > 20


def test_an_answer_whole_and_streamed(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 50}
    asked |= {
        "messages": HELLO,
        "system": "You are a friendly assistant.",
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**asked)
    assert whole.role == "assistant"
    assert "ello" in whole.content[0].text
    assert whole.usage.output_tokens > 1
    with client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


def test_a_streamed_call(client: anthropic.Anthropic, example: Example) -> None:
    ran = example("Anthropic")
    choice: Any = {"type": "tool", "name": "weather"}
    with client.messages.stream(
        messages=[{"role": "user", "content": ran["QUESTION"]}], tool_choice=choice, **ran["asked"]
    ) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(parts) > 1
    assert final.stop_reason == "tool_use"
    ran["Weather"].model_validate(final.content[-1].input)


def test_errors_are_of_its_kind(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(model="any", max_tokens=0, messages=HELLO)
    assert "max_tokens" in str(raised.value)


def test_a_tool_runner_goes_on_without_threads(scripted: str) -> None:
    @anthropic.beta_tool
    def say() -> str:
        """Print the words forty and two with a hyphen between them."""
        return RESULT

    claude = anthropic.Anthropic(base_url=f"http://{scripted}", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    counted = claude.messages.count_tokens(model="any", messages=messages)
    assert counted.input_tokens > len(QUESTION.split())
    runner = claude.beta.messages.tool_runner(
        model="any", max_tokens=100, tools=[say], messages=messages
    )
    first, last = runner
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert last.content[0].text == READ
