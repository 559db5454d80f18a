"""Objects, chunks and errors, read by OpenAI's own client and checked with its types."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.support.openai_types import CompletionChunk, check

from trtllm_truss.errors import (
    ContextLengthExceeded,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    QueueFull,
    TrussError,
)
from trtllm_truss.protocols.base import MAX_HELD_FIGURES
from trtllm_truss.protocols.openai.answers import (
    EventStream,
    OpenAICall,
    UsageCount,
    WholeAnswer,
    error_body,
)
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.requests import (
    Alternative,
    AnswerItem,
    FinishReason,
    GenerationEnd,
    TextDelta,
    Token,
    Usage,
)

HELLO = [{"role": "user", "content": "Hello"}]
Items = Iterable[AnswerItem]


def chat(**fields: Any) -> OpenAICall:
    return parse_chat({"model": "m", "messages": HELLO, **fields}, {})


def completion(**fields: Any) -> OpenAICall:
    return parse_completion({"model": "m", "prompt": "Hi", **fields}, {})


def finish(
    index: int = 0, reason: FinishReason = FinishReason.STOP, tokens: int = 2, prompt: int = 5
) -> GenerationEnd:
    return GenerationEnd(reason, Usage(prompt, tokens), index)


def whole(call: OpenAICall, items: Items) -> dict[str, Any]:
    answer = WholeAnswer(call, "x", 7)
    for item in items:
        answer.push(item)
    read: dict[str, Any] = json.loads(answer.end())
    return read


def stream(call: OpenAICall, items: Items) -> bytes:
    events = EventStream(call, "x", 7)
    return b"".join(events.push(item) for item in items) + events.end()


def frames(raw: bytes) -> list[dict[str, Any]]:
    events = raw.decode().removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def client(raw: bytes, status: int = 200, **headers: str) -> openai.OpenAI:
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(status, content=raw, headers=headers)
    )
    return openai.OpenAI(
        api_key="x",
        base_url="http://localhost/v1",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(transport=transport),
    )


def test_a_whole_message() -> None:
    body = whole(chat(), [TextDelta("Hé"), TextDelta("llo"), finish()])
    check(ChatCompletion, body)
    assert body == {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Héllo", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def test_a_whole_text() -> None:
    body = whole(completion(), [TextDelta("Hi"), finish(reason=FinishReason.LENGTH)])
    check(Completion, body)
    assert body["id"] == "cmpl-x"
    assert body["choices"] == [
        {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length"}
    ]


def test_choices_of_several_prompts_come_in_order() -> None:
    call = completion(prompt=["a", "b"], n=2)
    items = [
        TextDelta("b1", 3),
        TextDelta("a0"),
        TextDelta("b0", 2),
        TextDelta("a1", 1),
        *(finish(index, tokens=1, prompt=4) for index in (3, 2)),
        *(finish(index, tokens=2, prompt=3) for index in (0, 1)),
    ]
    body = whole(call, items)
    check(Completion, body)
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}


def test_an_answer_without_an_end_is_a_bug() -> None:
    with pytest.raises(InternalError):
        whole(chat(n=2), [finish(0)])


def test_a_message_in_chunks() -> None:
    raw = stream(chat(stream=True), [TextDelta("Hé"), TextDelta("llo"), finish()])
    chunks = frames(raw)
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("chatcmpl-x", 7, "m")
        assert "usage" not in chunk
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hé"},
        {"content": "llo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


def test_an_empty_message_in_chunks() -> None:
    first, last = frames(stream(chat(stream=True), [finish(tokens=0)]))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"


def test_choices_side_by_side() -> None:
    items = [TextDelta("a", 0), TextDelta("b", 1), finish(1), finish(0)]
    chunks = frames(stream(chat(stream=True, n=2), items))
    roles = [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]]
    assert roles == [0, 1]


def test_usage_comes_last_and_is_null_before() -> None:
    call = chat(stream=True, stream_options={"include_usage": True}, n=2)
    chunks = frames(stream(call, [TextDelta("a"), finish(0), finish(1)]))
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
    }


def test_cached_tokens_of_a_prompt_are_those_of_its_first_choice() -> None:
    """The choices run at once; the one that found the fewest computed the prompt for the others."""
    found = [3, 1, None, 0, None, None]
    ends = [
        GenerationEnd(FinishReason.STOP, Usage(5, 1, cached_tokens=cached), index)
        for index, cached in enumerate(found)
    ]
    call = completion(prompt=["a", "b", "c"], n=2)
    body = whole(call, [item for end in ends for item in (TextDelta("x", end.index), end)])
    check(Completion, body)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1 + 0}
    untold = whole(chat(), [TextDelta("x"), finish()])
    assert "prompt_tokens_details" not in untold["usage"]


def test_running_usage_is_in_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    items = [
        TextDelta("a", usage=Usage(5, 1)),
        TextDelta("b", 1, usage=Usage(5, 2)),
        finish(0, tokens=3),
        finish(1),
    ]
    for call in (chat(stream=True, stream_options=options, n=2),):
        chunks = frames(stream(call, items))
        for chunk in chunks:
            check(ChatCompletionChunk, chunk)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == [0, 1, 1, 3, 5, 5, 5]
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {5}
    alone = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in frames(stream(alone, items[:1])))


def reference_usage(
    usages: dict[int, Usage], reasoned: set[int], choices_each: int
) -> dict[str, Any]:
    """Count from the last usage of each answer."""
    prompts = {index // choices_each: usage.prompt_tokens for index, usage in usages.items()}
    found: dict[int, list[int]] = {}
    for index, usage in usages.items():
        if usage.cached_tokens is not None:
            found.setdefault(index // choices_each, []).append(usage.cached_tokens)
    completion = sum(usage.completion_tokens for usage in usages.values())
    counted = {i: u.reasoning_tokens for i, u in usages.items() if u.reasoning_tokens is not None}
    return {
        "prompt_tokens": sum(prompts.values()),
        "completion_tokens": completion,
        "total_tokens": sum(prompts.values()) + completion,
        **(
            {"prompt_tokens_details": {"cached_tokens": sum(map(min, found.values()))}}
            if found
            else {}
        ),
        **(
            {"completion_tokens_details": {"reasoning_tokens": sum(counted[i] for i in reasoned)}}
            if counted
            else {}
        ),
    }


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_running_usages_are_those_of_the_last_ones(seed: int) -> None:
    chance = random.Random(seed)
    prompts, choices = chance.randint(1, 5), chance.randint(1, 5)
    call = completion(prompt=["a"] * prompts, n=choices)
    lengths = [chance.randint(1, 9) for _ in range(prompts)]
    cached = [chance.choice([None, chance.randint(0, 9)]) for _ in range(prompts * choices)]
    reasons = {index for index in range(prompts * choices) if chance.random() < 0.5}
    counts, last = UsageCount(call), dict[int, Usage]()
    for _ in range(60):
        index = chance.randrange(prompts * choices)
        before = last.get(index, Usage(lengths[index // choices], 0))
        tokens = before.completion_tokens + chance.randint(0, 3)
        reasoning = tokens // 2 if index in reasons else None
        usage = Usage(before.prompt_tokens, tokens, reasoning, cached[index])
        if index not in last:
            counts.begin(TextDelta("", index, usage=usage))
        last[index] = usage
        counts.add(TextDelta("", index, usage=usage), has_reasoned=index in reasons)
        reasoned = reasons & last.keys()
        assert counts.fields() == reference_usage(last, reasoned, choices)


def test_a_text_in_chunks() -> None:
    chunks = frames(stream(completion(stream=True), [TextDelta("Hi"), finish()]))
    for chunk in chunks:
        check(CompletionChunk, chunk)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hi", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]


TOKENS = (
    Token(11, "Hé", -0.5, alternatives=(Alternative(12, "Ho", -1.5),)),
    Token(13, " you", -0.25, alternatives=(Alternative(13, " you", -0.25),)),
)


def test_log_probs_of_a_message() -> None:
    call = chat(logprobs=True, top_logprobs=1)
    body = whole(call, [TextDelta("Hé you", tokens=TOKENS), finish()])
    check(ChatCompletion, body)
    first, second = body["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "Hé",
        "logprob": -0.5,
        "bytes": [72, 195, 169],
        "top_logprobs": [{"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}],
    }
    assert second["token"] == " you"
    chunks = frames(
        stream(
            chat(stream=True, logprobs=True, top_logprobs=1),
            [TextDelta("Hé you", tokens=TOKENS), finish()],
        )
    )
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    assert chunks[1]["choices"][0]["logprobs"]["content"] == [first, second]


def test_the_chosen_token_is_the_likeliest_where_the_engine_names_no_other() -> None:
    call = chat(logprobs=True, top_logprobs=1)
    alone = tuple(replace(token, alternatives=()) for token in TOKENS)
    answer = whole(call, [TextDelta("Hé you", tokens=alone), finish()])
    check(ChatCompletion, answer)
    for token in answer["choices"][0]["logprobs"]["content"]:
        (top,) = token.pop("top_logprobs")
        assert top == token


def test_log_probs_of_a_text() -> None:
    items: Items = [TextDelta("Hé you", tokens=TOKENS), TextDelta("!", tokens=TOKENS[:1])]
    items = [*items, finish()]
    body = whole(completion(logprobs=1), items)
    check(Completion, body)
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 2, 6],
        "tokens": ["Hé", " you", "Hé"],
        "token_logprobs": [-0.5, -0.25, -0.5],
        "top_logprobs": [{"Ho": -1.5, "Hé": -0.5}, {" you": -0.25}, {"Ho": -1.5, "Hé": -0.5}],
    }
    chunks = frames(stream(completion(logprobs=1, stream=True), items))
    offsets = [(c["choices"][0]["logprobs"] or {}).get("text_offset") for c in chunks]
    assert offsets == [[0, 2], [6], None]
    alone = whole(completion(logprobs=0), items)["choices"][0]["logprobs"]
    assert alone["top_logprobs"] is None
    assert alone["tokens"] == ["Hé", " you", "Hé"]


@pytest.mark.parametrize("call", [completion(logprobs=2), chat(logprobs=True, top_logprobs=2)])
def test_a_response_sent_whole_has_a_limit_of_tokens_and_alternatives(call: OpenAICall) -> None:
    tokens = TOKENS[:1] * 1000  # with one alternative each
    answer = WholeAnswer(call, "x", 7)
    for _ in range(MAX_HELD_FIGURES // 2000):
        answer.push(TextDelta("x", tokens=tokens))
    with pytest.raises(InvalidRequest, match="stream it, or ask for fewer"):
        answer.push(TextDelta("x", tokens=tokens))


def test_the_client_reads_a_message() -> None:
    raw = json.dumps(whole(chat(), [TextDelta("Hi"), finish()])).encode()
    answer = client(raw, **{"Content-Type": "application/json"}).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}]
    )
    assert answer.choices[0].message.content == "Hi"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_the_client_reads_a_stream() -> None:
    call = chat(stream=True, stream_options={"include_usage": True})
    raw = stream(call, [TextDelta('"\u2028\n'), TextDelta("é"), finish()])
    chunks = list(
        client(raw, **{"Content-Type": "text/event-stream"}).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == '"\u2028\né'
    assert chunks[-1].usage is not None


def test_the_client_sees_that_a_stream_broke_off() -> None:
    events = EventStream(chat(stream=True), "x", 7)
    raw = events.push(TextDelta("Hi"))
    raw += events.error(EngineUnavailable("the engine has died."))
    answer = client(raw, **{"Content-Type": "text/event-stream"}).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}], stream=True
    )
    chunks = iter(answer)
    assert next(chunks).choices[0].delta.role == "assistant"
    assert next(chunks).choices[0].delta.content == "Hi"
    with pytest.raises(openai.APIError, match=r"the engine has died\."):
        next(chunks)


@pytest.mark.parametrize(
    ("error", "kind", "raised"),
    [
        (InvalidRequest("no.", param="n"), "invalid_request_error", openai.BadRequestError),
        (
            ContextLengthExceeded.describe(8, "long"),
            "invalid_request_error",
            openai.BadRequestError,
        ),
        (QueueFull("full."), "rate_limit_error", openai.RateLimitError),
        (EngineUnavailable("gone."), "server_error", openai.InternalServerError),
    ],
)
def test_errors_become_the_clients_exceptions(
    error: TrussError, kind: str, raised: type[openai.APIStatusError]
) -> None:
    body = error_body(error)
    assert body == {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
        }
    }
    raw = json.dumps(body).encode()
    with pytest.raises(raised) as caught:
        client(raw, error.status, **{"Content-Type": "application/json"}).completions.create(
            model="m", prompt="x"
        )
    assert (caught.value.code, caught.value.param) == (error.code, error.param)
