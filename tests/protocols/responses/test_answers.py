"""Responses and their events, checked with OpenAI's types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response
from tests.support.openai_types import check_response, check_response_event
from tests.tool_calls.outputs.notation import TOOLS, Call, Cut, Think
from tests.tool_calls.parsing import FORMATS, cases

from trtllm_truss.errors import EngineUnavailable, QueueFull, TrussError
from trtllm_truss.protocols.base import Writer
from trtllm_truss.protocols.responses.adapter import ResponsesAdapter
from trtllm_truss.protocols.responses.body import parse_response
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import FinishReason, GenerationEnd, TextDelta, Token, Usage
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS

Json = dict[str, Any]
SENT = [
    {"type": "function", "name": tool.name, "parameters": dict(tool.parameters), "strict": False}
    for tool in TOOLS
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
LENGTH = FinishReason.LENGTH
LOG_PROBS = "message.output_text.logprobs"


def writer_of(form: str = "hermes", thinks: str | None = None, **fields: Any) -> Writer:
    formats = ModelFormats(
        TOOL_FORMATS[form],
        REASONING_FORMATS[thinks] if thinks else None,  # type: ignore[index]
    )
    adapter = ResponsesAdapter({}, formats)
    return adapter.read({"input": "Hi", "model": "m", **fields}, "", "x").writer


def end(reason: FinishReason = FinishReason.STOP) -> GenerationEnd:
    return GenerationEnd(reason, Usage(5, 4, 3))


def frames(raw: bytes) -> list[Json]:
    """Return the events; check their names, numbers and types."""
    events = []
    for number, frame in enumerate(raw.decode().removesuffix("\n\n").split("\n\n")):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        check_response_event(event)
        events.append(event)
    return events


def streamed(
    pieces: Sequence[str], reason: FinishReason = FinishReason.STOP, /, **fields: Any
) -> list[Json]:
    writer = writer_of(stream=True, **fields)
    raw = b"".join(writer.push(TextDelta(piece)) for piece in pieces)
    return frames(raw + writer.push(end(reason)) + writer.end())


def whole(text: str, reason: FinishReason = FinishReason.STOP, /, **fields: Any) -> Json:
    writer = writer_of(**fields)
    assert writer.push(TextDelta(text)) + writer.push(end(reason)) == b""
    body: Json = json.loads(writer.end())
    check_response(body)
    return body


def kinds(events: Sequence[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def contents(body: Json) -> list[Any]:
    """Return kind or name, text and status of each item."""
    found: list[Any] = []
    for item in body["output"]:
        if item["type"] == "function_call":
            found.append((item["name"], item["arguments"], item["status"]))
        else:
            (part,) = item["content"]
            found.append((item["type"], part["text"], item["status"]))
    return found


def test_a_whole_text() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", **SENT[0]}]}
    plain = whole("Héllo", metadata={"a": "b"}, instructions="Be.", store=True)
    assert plain["id"] == "resp_x"
    assert plain["status"] == "completed"
    assert plain["instructions"] == "Be."
    assert contents(plain) == [("message", "Héllo", "completed")]
    assert Response.model_validate(plain).output_text == "Héllo"
    assert plain["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    echoed = whole("{}", text={"format": schema}, tools=SENT, tool_choice=choice)
    assert echoed["text"]["format"] == schema
    assert echoed["tool_choice"] == choice
    assert echoed["tools"][0] == {**SENT[0], "description": None}


def test_cached_tokens() -> None:
    writer = writer_of()
    usage = Usage(5, 4, cached_tokens=3)
    writer.push(GenerationEnd(FinishReason.STOP, usage))
    body = json.loads(writer.end())
    check_response(body)
    assert body["usage"]["input_tokens"] == 5
    assert body["usage"]["input_tokens_details"]["cached_tokens"] == 3


def test_a_text_in_events() -> None:
    events = streamed(["Hé", "llo"])
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    assert [event["delta"] for event in events if "delta" in event] == ["Hé", "llo"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"] == whole("Héllo", stream=False) | {
        "created_at": events[0]["response"]["created_at"]
    }


def test_reasoning_text_and_calls_in_events() -> None:
    pieces = ["<think>\nHm", "m.</think>\n\nWait.", CALL[:50], CALL[50:]]
    events = streamed(pieces, thinks="qwen3", tools=SENT)
    assert kinds(events) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    for before, after in zip(added, done, strict=True):
        assert (before["item"]["id"], before["item"]["status"]) == (
            after["item"]["id"],
            "in_progress",
        )
    last = events[-1]["response"]
    assert last["output"] == [event["item"] for event in done]
    assert contents(last) == [
        ("reasoning", "Hmm.", "completed"),
        ("message", "Wait.", "completed"),
        ("get_weather", '{"city": "Oslo"}', "completed"),
    ]
    assert last["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == last["output"][event["output_index"]]["id"]
    assert last["output"][2]["call_id"].startswith("call_")


def _call(name: str, arguments: Json) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"input": 'a "b"\n'}, 'a "b"\n'), ({"patch": "x"}, '{"patch": "x"}')],
    ids=["input", "another shape"],
)
def test_calls_of_custom_tools_and_of_namespaces(arguments: Json, text: str) -> None:
    tools: list[Json] = [
        {"type": "custom", "name": "patch", "format": {"type": "text"}},
        {"type": "namespace", "name": "mail", "description": "", "tools": SENT},
    ]
    written = _call("patch", arguments) + _call("mail__get_weather", {"city": "Oslo"})
    events = streamed([written[at : at + 7] for at in range(0, len(written), 7)], tools=tools)
    assert kinds(events)[2:7] == [
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done"),
        *("output_item.done", "output_item.added"),
    ]
    assert "".join(e["delta"] for e in events if "custom" in e["type"] and "delta" in e) == text
    for response in (events[-1]["response"], whole(written, tools=tools)):
        custom, namespaced = response["output"]
        assert (custom["type"], custom["name"], custom["input"]) == (
            *("custom_tool_call", "patch"),
            text,
        )
        assert "namespace" not in custom
        assert custom["call_id"] != namespaced["call_id"]
        assert (namespaced["namespace"], namespaced["name"], namespaced["arguments"]) == (
            *("mail", "get_weather"),
            '{"city": "Oslo"}',
        )
        again = writer_of(input=[{"role": "user", "content": "Hi"}, *response["output"]])
        assert again is not None


@pytest.mark.parametrize("name", FORMATS)
def test_a_response_holds_what_the_model_wrote(name: str) -> None:
    for written in cases(name):
        body = whole(written.output, form=name, tools=SENT)
        wanted = [part for part in written.parts if isinstance(part, Call)]
        found = contents(body)
        calls = [item for item in found if item[0] not in ("message", "reasoning")]
        assert [(name, json.loads(text)) for name, text, _ in calls] == [tuple(w) for w in wanted]
        thoughts = "".join(part.text for part in written.parts if isinstance(part, Think))
        assert "".join(text for kind, text, _ in found if kind == "reasoning") == thoughts
        if any(isinstance(part, Cut) for part in written.parts):
            continue
        texts = "".join(part for part in written.parts if isinstance(part, str))
        assert "".join(text for kind, text, _ in found if kind == "message") == texts
        pieces = [written.output[at : at + 3] for at in range(0, len(written.output), 3)]
        assert contents(streamed(pieces, form=name, tools=SENT)[-1]["response"]) == found


def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    body = whole("Hé", LENGTH)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert contents(body) == [("message", "Hé", "incomplete")]
    events = streamed(["Hé"], LENGTH)
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    assert contents(events[-1]["response"]) == contents(body)
    thinking = whole("<think>Hm", LENGTH, thinks="qwen3")
    assert contents(thinking) == [("reasoning", "Hm", "incomplete")]


def test_a_call_that_is_cut_off_is_no_call() -> None:
    body = whole(f"Wait.\n{CALL[:-20]}", LENGTH, tools=SENT)
    ((kind, text, status),) = contents(body)
    assert (kind, status) == ("message", "incomplete")
    assert text.startswith('Wait.\n{"name": "get_weather", "arguments": {"city"')
    one = {"tools": SENT, "parallel_tool_calls": False}
    assert len(contents(whole(CALL + CALL[:-20], LENGTH, **one))) == 1


@pytest.mark.parametrize("reason", FinishReason)
def test_a_call_that_is_cut_off_in_a_stream_is_incomplete(reason: FinishReason) -> None:
    events = streamed([CALL[:-20]], reason, tools=SENT)
    assert kinds(events)[2:] == [
        *("output_item.added", "function_call_arguments.delta", "output_item.done", "incomplete"),
    ]
    response = events[-1]["response"]
    assert response["output"][0]["status"] == "incomplete"
    cause = "max_output_tokens" if reason is LENGTH else None
    assert response["incomplete_details"] == {"reason": cause}


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_without_parallel_calls(stream: bool) -> None:
    fields: Json = {"tools": SENT, "parallel_tool_calls": False}
    text = CALL + CALL.replace("Oslo", "Rome")
    body = streamed([text], **fields)[-1]["response"] if stream else whole(text, **fields)
    assert contents(body) == [("get_weather", '{"city": "Oslo"}', "completed")]


@pytest.mark.parametrize(("text", "items"), [("", 1), ("<think>Hm.</think>", 2)])
def test_an_answer_without_text_has_an_empty_message(text: str, items: int) -> None:
    body = whole(text, thinks="qwen3")
    assert len(body["output"]) == items
    assert contents(body)[-1] == ("message", "", "completed")
    assert contents(streamed([text], thinks="qwen3")[-1]["response"]) == contents(body)


def test_log_probs_of_the_text() -> None:
    tokens = (Token(1, "Hé", -0.5), Token(2, "llo", -0.25))
    writer = writer_of(include=[LOG_PROBS], stream=True)
    raw = b"".join(writer.push(TextDelta(token.text, tokens=(token,))) for token in tokens)
    events = frames(raw + writer.push(end()) + writer.end())
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["logprobs"] for event in deltas] == [
        [{"token": token.text, "logprob": token.log_prob, "top_logprobs": []}] for token in tokens
    ]
    (part,) = events[-1]["response"]["output"][0]["content"]
    assert b"".join(bytes(token["bytes"]) for token in part["logprobs"]).decode() == "Héllo"
    assert events[3]["part"]["logprobs"] == []
    writer = writer_of(include=[LOG_PROBS])
    writer.push(TextDelta("Héllo", tokens=tokens))
    writer.push(end())
    assert json.loads(writer.end())["output"][0]["content"] == [part]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnavailable("the engine has died."), "server_error"),
        (QueueFull("the queue is full."), "rate_limit_exceeded"),
    ],
)
@pytest.mark.parametrize("pieces", [[], [CALL, "Wait."]])
def test_a_failed_stream_ends_with_the_error(
    pieces: list[str], error: TrussError, code: str
) -> None:
    writer = writer_of(stream=True, tools=SENT)
    raw = b"".join(writer.push(TextDelta(piece)) for piece in pieces)
    events = frames(raw + writer.error(error))
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert kinds(events)[-2:] == ["error", "failed"]
    assert (events[-2]["code"], events[-2]["message"]) == (error.code, error.message)
    response = events[-1]["response"]
    assert response["error"] == {"code": code, "message": error.message}
    assert len(response["output"]) == len(pieces) // 2


def test_the_client_reads_the_events() -> None:
    writer = writer_of(stream=True, tools=SENT, thinks="qwen3")
    raw = b"".join(writer.push(TextDelta(text)) for text in ("<think>Hm", "m.</think>Wait.", CALL))
    raw += writer.push(end()) + writer.end()
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, content=raw, headers={"Content-Type": "text/event-stream"})
    )
    http = openai.DefaultHttpxClient(transport=transport)
    client = openai.OpenAI(api_key="x", base_url="http://localhost/v1", http_client=http)
    with client.responses.stream(model="m", input="Hi", tools=SENT) as stream:  # type: ignore[arg-type]
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "".join(deltas) == "Wait."


def test_the_output_can_be_sent_back() -> None:
    output = whole(f"<think>Hm.</think>Wait.{CALL}", thinks="qwen3", tools=SENT)["output"]
    result = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "22"}
    items = [{"role": "user", "content": "Hi"}, *output, result]
    messages = parse_response({"input": items}, {}).request.messages or ()
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]


@pytest.mark.parametrize("asked", [{"summary": "auto"}, {"generate_summary": "concise"}])
def test_reasoning_is_a_summary_where_one_is_asked_for(asked: Json) -> None:
    """The events are those of https://platform.openai.com/docs/api-reference/responses-streaming."""
    fields = {"thinks": "qwen3", "reasoning": asked}
    events = streamed(["<think>Let me", " see.</think>", "Oslo"], **fields)
    item_id, part = "rs_x_0", {"type": "summary_text", "text": "Let me see."}
    place = {"item_id": item_id, "output_index": 0, "summary_index": 0}
    reasoning = [event for event in events if event.get("item_id") == item_id]
    for event in reasoning:
        del event["sequence_number"]
    assert reasoning == [
        {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **place, "delta": "Let me"},
        {"type": "response.reasoning_summary_text.delta", **place, "delta": " see."},
        {"type": "response.reasoning_summary_text.done", **place, "text": "Let me see."},
        {"type": "response.reasoning_summary_part.done", **place, "part": part},
    ]
    item = {"id": item_id, "type": "reasoning", "status": "completed", "summary": [part]}
    response = events[-1]["response"]
    assert response["output"][0] == item
    assert response["reasoning"]["summary"] in asked.values()
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert done["item"] == item
    complete = whole("<think>Let me see.</think>Oslo", **fields)
    assert complete["output"] == response["output"]
    (turn,) = parse_response({"input": [item]}, {}).request.messages
    assert "Let me see." in turn.values()


def test_a_cut_summary_is_incomplete() -> None:
    asked = {"thinks": "qwen3", "reasoning": {"summary": "auto"}}
    events = streamed(["<think>Let me"], LENGTH, **asked)
    ended = next(each for each in events if each["type"].endswith("summary_part.done"))
    assert ended["status"] == "incomplete"
    (item,) = events[-1]["response"]["output"]
    assert (item["status"], item["summary"][0]["text"]) == ("incomplete", "Let me")
