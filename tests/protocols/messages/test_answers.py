"""Messages, events and errors, checked with the types of Anthropic's client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx2
import pytest
from tests.support.anthropic_types import check_error, check_message, read_events
from tests.tool_calls.outputs.notation import TOOLS, Call, Cut, Think
from tests.tool_calls.parsing import FORMATS, cases

from trtllm_truss.endpoints.encoded_body import KEEP_ALIVE_COMMENT
from trtllm_truss.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    QueueFull,
    TrussError,
)
from trtllm_truss.protocols.messages.adapter import MessagesAdapter, error_body
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import FinishReason, GenerationEnd, TextDelta, Usage
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS

Json = dict[str, Any]
SENT = [{"name": tool.name, "input_schema": dict(tool.parameters)} for tool in TOOLS]
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
STOP = FinishReason.STOP
SO_FAR = Usage(5, 1, cached_tokens=3)


def answer(
    pieces: Iterable[str],
    end: GenerationEnd | None = None,
    *,
    form: str = "hermes",
    reasoning: str | None = None,
    **fields: Any,
) -> Json:
    """The message, whole or joined from its events."""
    formats = ModelFormats(
        TOOL_FORMATS[form],
        REASONING_FORMATS[reasoning] if reasoning else None,
    )
    body = {
        **{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
        **fields,
    }
    writer = MessagesAdapter({}, formats).read(body, "", "x").writer
    raw = b"".join(writer.push(TextDelta(piece, usage=SO_FAR)) for piece in pieces)
    raw += writer.push(end or GenerationEnd(STOP, Usage(5, 2))) + writer.end()
    if fields.get("stream"):
        return joined(read_events(raw))
    message: Json = json.loads(raw)
    check_message(message)
    return message


def joined(events: list[Json]) -> Json:
    """The message that the events add up to; checks their order."""
    first, *others, delta, last = events
    message = first["message"]
    assert first["type"] == "message_start"
    assert message["content"] == []
    assert message["usage"]["input_tokens"] in (2, 5), "the prompt's, without the cached ones"
    assert message["usage"]["output_tokens"] == 0
    assert delta["type"] == "message_delta"
    assert last == {"type": "message_stop"}
    blocks = message["content"]
    is_open = False
    for event in others:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "parts": []})
            is_open = True
        else:
            assert is_open
            assert event["index"] == len(blocks) - 1
            if kind == "content_block_stop":
                is_open = False
            elif event["delta"]["type"] == "signature_delta":
                blocks[-1]["signature"] = event["delta"]["signature"]
            else:
                (part,) = (event["delta"][key] for key in event["delta"].keys() - {"type"})
                assert part
                blocks[-1]["parts"].append(part)
    assert not is_open
    for block in blocks:
        text = "".join(block.pop("parts"))
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = text
        else:
            block[block["type"]] = text
    return {**message, **delta["delta"], "usage": delta["usage"]}


def of_type(message: Json, kind: str) -> list[Json]:
    return [block for block in message["content"] if block["type"] == kind]


def test_an_unsupported_thread_is_named_as_anthropics_runner_reads_it() -> None:
    from anthropic import BadRequestError
    from anthropic.lib.threads._thread_state import _unsupported_features

    with pytest.raises(InvalidRequest, match=r"thread is .* send all messages") as raised:
        answer([], thread={"type": "create"})
    body = error_body(raised.value)
    response = httpx2.Response(400, request=httpx2.Request("POST", "http://server"))
    assert _unsupported_features(BadRequestError("", response=response, body=body)) == ["threads"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_text(stream: bool) -> None:
    assert answer(["He", "llo"], stream=stream) == {
        "id": "msg_x",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "output_tokens": 2,
        },
    }
    assert answer([], stream=stream)["content"] == []


@pytest.mark.parametrize("cached", [0, 4])
@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_counted_apart(stream: bool, cached: int) -> None:
    end = GenerationEnd(STOP, Usage(5, 2, cached_tokens=cached))
    assert answer(["Hi"], end, stream=stream)["usage"] == {
        "input_tokens": 5 - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 2,
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("end", "reason", "word"),
    [
        (GenerationEnd(FinishReason.LENGTH, Usage(5, 9)), "max_tokens", None),
        (GenerationEnd(FinishReason.LENGTH, Usage(5, 8)), "model_context_window_exceeded", None),
        (GenerationEnd(STOP, Usage(5, 2), stop_word="END"), "stop_sequence", "END"),
    ],
)
def test_the_stop_reason(stream: bool, end: GenerationEnd, reason: str, word: str | None) -> None:
    message = answer(["Hi"], end, stream=stream)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, word)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_hold_what_the_model_wrote(name: str, stream: bool) -> None:
    for written in cases(name):
        if stream and any(isinstance(part, Cut) for part in written.parts):
            continue
        pieces = [written.output[at : at + 3] for at in range(0, len(written.output), 3)]
        message = answer(pieces, form=name, tools=SENT, stream=stream)
        wanted = [part for part in written.parts if isinstance(part, Call)]
        calls = of_type(message, "tool_use")
        assert len({call["id"] for call in calls}) == len(calls)
        assert all(call["id"].startswith("toolu_") for call in calls)
        read = json.loads if stream else dict
        assert [(call["name"], read(call["input"])) for call in calls] == [tuple(p) for p in wanted]
        assert message["stop_reason"] == ("tool_use" if wanted else "end_turn")
        thoughts = "".join(block["thinking"] for block in of_type(message, "thinking"))
        assert thoughts == "".join(p.text for p in written.parts if isinstance(p, Think))
        if not any(isinstance(part, Cut) for part in written.parts):
            texts = "".join(block["text"] for block in of_type(message, "text"))
            assert texts == "".join(part for part in written.parts if isinstance(part, str))


def test_a_call_that_is_cut_off_is_text() -> None:
    end = GenerationEnd(FinishReason.LENGTH, Usage(5, 9))
    whole = answer(["I look. ", HERMES[:-20]], end, tools=SENT)
    assert whole["stop_reason"] == "max_tokens"
    (block,) = whole["content"]
    assert block["text"].startswith('I look. {"name": "get_weather", "arguments": {"city"')
    streamed = answer([HERMES[:-20]], end, tools=SENT, stream=True)
    assert streamed["stop_reason"] == "max_tokens"
    assert streamed["content"][0]["input"].startswith('{"city"')


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_without_parallel_calls(stream: bool) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    twice = HERMES + HERMES.replace("Oslo", "Rome")
    message = answer([twice], tools=SENT, tool_choice=choice, stream=stream)
    (call,) = message["content"]
    assert "Oslo" in str(call["input"])
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_of_its_own(stream: bool) -> None:
    end = GenerationEnd(STOP, Usage(5, 9, reasoning_tokens=4))
    pieces = ["<think>\nHm", "m.\n</thi", "nk>\n\nHello."]
    message = answer(pieces, end, reasoning="qwen3", stream=stream)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": "unsigned"},
        {"type": "text", "text": "Hello."},
    ]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 4}
    hidden = {"type": "adaptive", "display": "omitted"}
    message = answer(pieces, end, reasoning="qwen3", stream=stream, thinking=hidden)
    assert [block.get("thinking") for block in message["content"]] == ["", None]
    message = answer(["Hello."], end, reasoning="qwen3", stream=stream)
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 0}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"city": "\\ud83d"}', {"city": "?"}),
        ('{"city": "\\ud83d\\ude00"}', {"city": "😀"}),
        ('{"city": 1e999}', None),
        (f'{{"city": {"1" * 5000}}}', None),
        (f'{{"city": {"[" * 60}{"]" * 60}}}', {"city": json.loads("[" * 60 + "]" * 60)}),
    ],
    ids=["half", "pair", "infinite", "digits", "deep"],
)
def test_arguments_that_json_cannot_hold(arguments: str, found: Any) -> None:
    message = answer([HERMES.replace('{"city": "Oslo"}', arguments)], tools=SENT)
    (block,) = message["content"]
    if found is None:
        assert block["text"].startswith('{"name": "get_weather", "arguments": {"city":')
        assert message["stop_reason"] == "end_turn"
    else:
        assert block["input"] == found
        assert message["stop_reason"] == "tool_use"


def test_a_failed_stream_ends_with_an_error() -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    writer = MessagesAdapter({}, ModelFormats()).read(body, "", "x").writer
    raw = writer.push(TextDelta("Hi", usage=SO_FAR)) + writer.error(EngineUnavailable("gone."))
    assert read_events(raw)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "gone."},
        "request_id": "x",
    }


def test_the_client_reads_a_stream_with_comments_and_its_error() -> None:
    import anthropic  # takes two seconds

    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    writer = MessagesAdapter({}, ModelFormats()).read(body, "", "x").writer
    chunks = [writer.push(TextDelta("Hi", usage=SO_FAR)), writer.error(EngineUnavailable("gone."))]
    raw = KEEP_ALIVE_COMMENT + KEEP_ALIVE_COMMENT.join(chunks)
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, content=raw, headers={"content-type": "text/event-stream"})
    )
    kinds: list[str] = []
    with (
        httpx2.Client(transport=transport) as http,
        anthropic.Anthropic(api_key="none", http_client=http, max_retries=0) as client,
        client.messages.create(**body, model="m") as stream,
        pytest.raises(anthropic.APIStatusError, match="gone") as raised,
    ):
        kinds.extend(event.type for event in stream)
    assert kinds == ["message_start", "content_block_start", "content_block_delta"]
    assert raised.value.type == "overloaded_error"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("x"), "invalid_request_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (QueueFull("x"), "rate_limit_error"),
        (EngineUnavailable("x"), "overloaded_error"),
        (DeadlineExceeded("x"), "timeout_error"),
        (InternalError("x"), "api_error"),
    ],
)
def test_errors(error: TrussError, kind: str) -> None:
    body = error_body(error)
    assert body == {"type": "error", "error": {"type": kind, "message": "x"}}
    if kind != "request_too_large":  # documented, but missing in the client's types
        check_error(body)


def test_a_context_overflow_begins_with_the_words_of_anthropic() -> None:
    body = error_body(ContextLengthExceeded.describe(8, "messages is 9 tokens long"))
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith("prompt is too long: This model's maximum context")
