"""`predict` through the real Truss server, the real Triton and a real LLM."""

from __future__ import annotations

import concurrent.futures
import json
from itertools import islice
from typing import Any

import httpx
import pytest
from tests.support.endpoint_picker import latest
from tests.support.truss_process import Served
from tests.support.waiting import settles

PROMPT = "The capital of France is"
GREEDY = {"prompt": PROMPT, "max_tokens": 24, "top_k": 1}


def events(text: str) -> list[dict[str, object]]:
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def without_cached(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without the cached tokens, which depend on earlier requests."""
    usage = dict(body["usage"])
    assert 0 <= usage.pop("cached_tokens") < usage["prompt_tokens"]
    return {**body, "usage": usage}


def test_the_three_forms_return_the_same_text(server: Served) -> None:
    plain = server.post(GREEDY)
    assert plain.status_code == 200
    assert plain.headers["content-type"] == "text/plain; charset=utf-8"
    assert plain.headers["transfer-encoding"] == "chunked"

    frames = events(server.post(GREEDY, headers={"Accept": "text/event-stream"}).text)
    *pieces, finish = frames
    assert "".join(str(piece["text"]) for piece in pieces) == plain.text
    assert finish["finish_reason"] == "length"
    assert without_cached(finish)["usage"] == {"prompt_tokens": 5, "completion_tokens": 24}

    whole = server.post({**GREEDY, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert without_cached(whole.json()) == {"text": plain.text, **without_cached(finish)}
    again = server.post(GREEDY, headers={"Accept": "application/json"}).json()
    assert without_cached(again) == without_cached(whole.json())
    assert "Paris" in plain.text
    assert PROMPT not in plain.text


def test_text_comes_as_it_is_generated(server: Served) -> None:
    body = {**GREEDY, "max_tokens": 500, "ignore_eos": True}
    with httpx.stream("POST", server.url, json=body, timeout=60) as answer:
        pieces = answer.iter_raw()
        assert next(pieces)
        assert server.metric("requests_running") == 1, "the rest is still to come"
        page = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=60).text
        assert len([*islice(pieces, 10)]) == 10
    # An endpoint picker sees it too, whatever the engine.
    assert latest(page, "trtllm_num_requests_running") == 1
    assert 0 < latest(page, "trtllm_kv_cache_utilization") <= 1
    assert latest(page, "trtllm_kv_cache_tokens_per_block") == 32
    assert latest(page, "trtllm_num_requests_waiting") == 0
    assert settles(lambda: server.metric("requests_running") == 0)


def test_stop_word_ends_the_text_just_before_it(server: Served) -> None:
    text = server.post(GREEDY).text
    word = text[10:16]
    body = server.post({**GREEDY, "stop_words": ["never seen", word], "stream": False}).json()
    assert body["text"] == text[: text.find(word)]
    assert body["finish_reason"] == "stop"


def test_chat_ends_by_itself(server: Served) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    chat = {"messages": messages, "max_tokens": 200, "top_k": 1, "stream": False}
    body = server.post(chat).json()
    assert body["finish_reason"] == "stop"
    assert "<|im_end|>" not in body["text"]
    assert body["usage"]["completion_tokens"] < 200


def test_what_other_servers_take(server: Served) -> None:
    """The fields of Baseten's TensorRT-LLM server and of Truss's examples."""
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    chat = {
        "messages": [
            {"role": "user", "content": "How is the weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
        ],
        **{"model": "", "n": 1, "logprobs": False, "user": "u", "tools": [tool], "top_k": 1},
        **{"max_new_tokens": 40, "end_id": 2, "pad_id": 2, "stream_options": {}, "stream": False},
    }
    assert server.post(chat).json()["text"]
    named = {"type": "function", "function": {"name": "weather"}}
    assert "weather" in server.post({**chat, "tool_choice": named}).json()["text"]
    form = {"type": "regex", "regex": "(yes|no)"}
    text = server.post({**GREEDY, "response_format": form, "stream": False}).json()["text"]
    assert text in ("yes", "no")
    answer = server.post({**GREEDY, "response_format": {"type": "regex", "regex": "(yes"}})
    assert answer.json()["error"]["param"] == "response_format"


def test_max_tokens_counts_generated_tokens(server: Served) -> None:
    body = server.post({**GREEDY, "max_tokens": 1, "stream": False}).json()
    assert body["usage"]["completion_tokens"] == 1


def test_ignore_eos_goes_on_to_max_tokens(server: Served) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    body = server.post(
        {"messages": messages, "max_tokens": 80, "top_k": 1, "ignore_eos": True, "stream": False}
    ).json()
    assert body["usage"]["completion_tokens"] == 80
    assert body["finish_reason"] == "length"


def test_seeds(server: Served) -> None:
    # A unique prompt: GenAI samples differently if the whole prompt is in its cache.
    prompt = "A seed is planted in spring and"
    sampled = {**GREEDY, "prompt": prompt, "top_k": 50, "temperature": 1.5, "stream": False}
    first = server.post({**sampled, "seed": 11}).json()["text"]
    assert server.post({**sampled, "seed": 11}).json()["text"] == first
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert len({answer.json()["text"] for answer in pool.map(server.post, [sampled] * 3)}) > 1


def test_sagemaker_routes(server: Served) -> None:
    base = f"http://127.0.0.1:{server.port}"
    assert httpx.get(f"{base}/ping", timeout=60).status_code == 200
    answer = httpx.post(f"{base}/invocations", json=GREEDY, timeout=60)
    assert answer.json()["choices"][0]["text"] == server.post(GREEDY).text
    assert httpx.get(f"{base}/v1/models/model", timeout=60).status_code == 200


def test_concurrent_requests_return_the_texts_of_single_ones(server: Served) -> None:
    prompts = [f"{PROMPT} {n}," for n in range(16)]
    bodies = [{"prompt": prompt, "max_tokens": 16, "top_k": 1} for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(server.post, bodies))
    assert [answer.status_code for answer in answers] == [200] * 16
    assert all(answer.text for answer in answers)


@pytest.mark.parametrize(
    ("body", "code", "param", "parts"),
    [
        ({"prompt": "x " * 9000}, "context_length_exceeded", "prompt", ["8191", "shorten"]),
        (
            {"prompt": "x", "max_tokens": 9000},
            "context_length_exceeded",
            "max_tokens",
            ["9000", "8192", "8191"],
        ),
        ({"prompt": "x", "beam_width": 4}, "invalid_request", "beam_width", ["4", "at most 1"]),
        pytest.param({"prompt": "x", "bad_words": ["y"]}, "invalid_request", "bad_words",
         ["not supported"], marks=pytest.mark.engines("cpu")),
        ({"prompt": ""}, "invalid_request", "prompt", ["must not be empty"]),
        ({"messages": [{"role": "user", "content": "a"}], "prompt": "b"}, "invalid_request",
         "messages", ["both given"]),
    ],
)  # fmt: skip
def test_refusals(
    server: Served, body: dict[str, object], code: str, param: str, parts: list[str]
) -> None:
    answer = server.post(body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    for part in parts:
        assert part in error["message"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff\xfe"}', b'{"prompt": NaN}', b"[" * 50_000]
)
def test_bodies_that_are_not_json(server: Served, raw: bytes) -> None:
    answer = httpx.post(server.url, content=raw, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_request"
