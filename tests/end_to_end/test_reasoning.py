"""Guides and forced calls of models that reason.

A compiled stand-in generates in every run, each kind of engine with `--engines all`: which steps an
answer takes does not depend on it (tests/inference/test_reasoning.py), and tests/engines shows that
each follows a guide.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.thinker import (
    CITY,
    KINDS,
    LONG,
    MODES,
    QUESTION,
    THOUGHTS,
    TOOLS,
    prompt_ids,
    serve_thinker,
    tokenizer_folder,
)
from tests.support.truss_process import Served
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer

Json = dict[str, Any]
LIMIT = 48
RELEASED = bytes(4096)
NAMED = {"type": "function", "function": {"name": "get_weather"}}
GUIDES: dict[str, Json] = {
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    },
    "json_object": {"response_format": {"type": "json_object"}},
    "regex": {"response_format": {"type": "regex", "regex": "yes|no"}},
    "grammar": {"response_format": {"type": "grammar", "grammar": 'root ::= "maybe" | "never"'}},
    "forced tool": {"tools": TOOLS, "tool_choice": "required"},
    "named tool": {"tools": TOOLS, "tool_choice": NAMED},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=[] if kind == "tensorrtllm" else pytest.mark.thorough)
        for kind in KINDS
    ],
)
def thinker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with ended(serve_thinker(request.param, tmp_path_factory.mktemp("thinker"))) as served:
        yield served


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a byte for each token that `slow_thinker` may generate in an answer."""
    file = tmp_path_factory.mktemp("released") / "tokens"
    file.write_bytes(RELEASED)
    return file


@pytest.fixture(scope="module")
def slow_thinker(tmp_path_factory: pytest.TempPathFactory, released: Path) -> Iterator[Served]:
    """The fake of the C++ backend with two places."""
    served = serve_thinker(
        "tensorrtllm",
        tmp_path_factory.mktemp("slow"),
        engine={"step_ms": 5, "limits": {"max_batch_size": 2}, "released": released},
        serving={
            "queue_limit": 1,
            "queue_timeout_s": PATIENCE_S,
            "reasoning_limit_tokens": LIMIT,
        },
    )
    with ended(served) as served:
        yield served


@contextmanager
def ended(served: Served) -> Iterator[Served]:
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
        assert not served.leftovers()
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(tokenizer_folder(tmp_path_factory.mktemp("tokenizer")))


def post(served: Served, route: str, **fields: Any) -> httpx.Response:
    base = served.url.removesuffix("/v1/models/model:predict")
    body = {"temperature": 0, "model": "any", **fields}
    answer = httpx.post(f"{base}/v1/{route}", json=body, timeout=2 * PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer


def chat(served: Served, *, stream: bool = False, **fields: Any) -> Json:
    """Return the first choice of a chat, joined if it was streamed, with the usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    fields = {"messages": QUESTION, "max_tokens": 64, "logprobs": True, **fields}
    answer = post(served, "chat/completions", **fields, **options)
    if not stream:
        body: Json = answer.json()
        return {**body["choices"][0], "usage": body["usage"]}
    message: Json = {"content": "", "reasoning_content": "", "tool_calls": []}
    tokens: list[Json] = []
    found: Json = {"message": message, "logprobs": {"content": tokens}}
    for line in answer.text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        found["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            for key in ("content", "reasoning_content"):
                message[key] += choice["delta"].get(key) or ""
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append(call)
                else:
                    arguments = call["function"]["arguments"]
                    message["tool_calls"][-1]["function"]["arguments"] += arguments
            tokens += (choice["logprobs"] or {"content": []})["content"]
            found["finish_reason"] = choice["finish_reason"]
    return found


def check_content(guide: str, choice: Json) -> None:
    message = choice["message"]
    if guide.endswith("tool"):
        assert message["tool_calls"]
        for call in message["tool_calls"]:
            assert call["function"]["name"] in ("get_weather", "get_time")
            assert guide != "named tool" or call["function"]["name"] == "get_weather"
            assert json.loads(call["function"]["arguments"]).keys() == {"city"}
        assert not message["content"]
        assert choice["finish_reason"] == ("stop" if guide == "named tool" else "tool_calls")
        return
    content = message["content"]
    if guide.startswith("json"):
        answer = json.loads(content)
        assert guide == "json_object" or answer.keys() == {"city"}
        assert content == json.dumps(answer, ensure_ascii=False)
        assert isinstance(json.loads(content), dict)
    else:
        assert content in ({"yes", "no"} if guide == "regex" else {"maybe", "never"})
    assert choice["finish_reason"] == "stop"


@pytest.fixture(scope="module")
def choices(
    thinker: Served, request: pytest.FixtureRequest
) -> dict[tuple[str, str, bool], Future[Json]]:
    """The answers by mode, guide and streaming, all asked at once: one step is for many of them."""

    def ask(mode: str, guide: str, stream: bool) -> Json:
        variables = MODES[mode]
        return chat(thinker, stream=stream, chat_template_kwargs=variables, **GUIDES[guide])

    runs_all = request.config.getoption("--engines") == "all"
    cells = [*itertools.product(MODES, GUIDES, (False, True))]
    cells = cells if runs_all else [*filter(_is_in_every_run, cells)]
    with ThreadPoolExecutor(len(cells)) as pool:
        return {cell: pool.submit(ask, *cell) for cell in cells}


def _is_in_every_run(cell: tuple[str, str, bool]) -> bool:
    """Return whether a guide is asked for: two of six in each mode, whole and streamed."""
    mode, guide, stream = cell
    return ([*MODES].index(mode) + [*GUIDES].index(guide) + stream) % 3 == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", MODES)
def test_guides_and_forced_calls_follow_the_reasoning(
    choices: dict[tuple[str, str, bool], Future[Json]],
    tokenizer: TextTokenizer,
    mode: str,
    stream: bool,
    request: pytest.FixtureRequest,
) -> None:
    is_scripted = request.node.callspec.params["thinker"] == "tensorrtllm"
    for guide in GUIDES:
        if (cell := (mode, guide, stream)) not in choices:
            continue
        choice = choices[cell].result()
        # In JSON, SmolLM2 may go on with white space, by the rounding of this processor.
        goes_on = choice["finish_reason"] == "length" and guide not in ("regex", "grammar")
        if not goes_on or is_scripted:
            check_content(guide, choice)
        thoughts = "" if mode == "none" else THOUGHTS
        assert (choice["message"].get("reasoning_content") or "") == thoughts
        usage = choice["usage"]
        tools = GUIDES[guide].get("tools")
        assert usage["prompt_tokens"] == len(prompt_ids(tokenizer, QUESTION, mode, tools))
        opening = " <think>\n" if mode == "the model opens it" else ""
        reasoned = f"{opening}{THOUGHTS}\n</think>" if thoughts else ""
        counted = len(tokenizer.encode(reasoned))
        assert usage["completion_tokens_details"] == {"reasoning_tokens": counted}
        tokens = choice["logprobs"]["content"]
        assert len(tokens) == usage["completion_tokens"] > counted
        assert all(token["logprob"] <= 0 for token in tokens)
        written = "".join(token["token"] for token in tokens)
        assert written.startswith(reasoned)
        if not guide.endswith("tool"):
            assert written == reasoned + choice["message"]["content"]


def test_other_protocols(thinker: Served) -> None:
    schema = {"type": "json_schema", "schema": CITY}
    answer = post(
        thinker,
        "responses",
        input="Is it May?",
        max_output_tokens=48,
        text={"format": {**schema, "name": "c"}},
    ).json()
    reasoning, message = answer["output"]
    assert reasoning["content"][0]["text"] == THOUGHTS
    assert json.loads(message["content"][0]["text"]).keys() == {"city"}
    answer = post(
        thinker,
        "messages",
        messages=QUESTION,
        max_tokens=48,
        output_config={"format": schema},
    ).json()
    thinking, text = answer["content"]
    assert thinking["thinking"] == THOUGHTS
    assert json.loads(text["text"]).keys() == {"city"}
    body = {"messages": QUESTION, "max_tokens": 48, "stream": False, **GUIDES["json_schema"]}
    text = thinker.post(body).json()["text"]
    thoughts, _, content = text.partition("\n</think>\n\n")
    assert thoughts == THOUGHTS
    assert json.loads(content).keys() == {"city"}


def test_several_answers(thinker: Served) -> None:
    fields = {"n": 3, "temperature": 0.2, "seed": 1, "max_tokens": 48}
    body = {"messages": QUESTION, **fields, **GUIDES["regex"]}
    answer = post(thinker, "chat/completions", **body).json()
    assert len(answer["choices"]) == 3
    for choice in answer["choices"]:
        if choice["finish_reason"] == "stop":  # else it is still reasoning
            assert choice["message"]["content"] in ("yes", "no")
            assert choice["message"]["reasoning_content"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("guide", ["none", "regex"])
def test_reasoning_ends_at_its_limit(slow_thinker: Served, guide: str, stream: bool) -> None:
    fields = GUIDES.get(guide, {})
    choice = chat(slow_thinker, stream=stream, messages=LONG, max_tokens=100, **fields)
    assert choice["message"]["reasoning_content"].startswith("Hm. Hm. Hm.")
    assert choice["message"]["content"] == ("yes" if fields else "Yes.")
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": LIMIT}
    assert choice["finish_reason"] == "stop"
    choice = chat(slow_thinker, stream=stream, messages=LONG, max_tokens=20, **fields)
    assert choice["message"]["reasoning_content"].startswith("Hm. Hm. Hm.")
    assert not choice["message"]["content"]
    assert choice["usage"]["completion_tokens"] == 20
    assert choice["finish_reason"] == "length"


def test_the_second_request_reuses_the_cache(
    slow_thinker: Served, tokenizer: TextTokenizer
) -> None:
    """The cache holds the prompt and the reasoning, except for the last token."""

    def reused() -> list[tuple[str, str]]:
        return re.findall(r"reused id=\w+-answer tokens=(\d+) of=(\d+)", slow_thinker.log)

    before = len(reused())
    chat(slow_thinker, messages=LONG, max_tokens=100, **GUIDES["regex"])
    assert settles(lambda: len(reused()) > before)
    prompt = len(prompt_ids(tokenizer, LONG, "the template opens it"))
    tokens, length = map(int, reused()[-1])
    assert tokens >= prompt + LIMIT - 1  # more if it was asked before
    assert length - tokens < 64


def test_cached_tokens_are_those_of_the_callers_prompt(
    slow_thinker: Served, tokenizer: TextTokenizer
) -> None:
    """The second step finds prompt and reasoning; only the template is known to the first one."""
    asked = [{"role": "user", "content": "What did the cache have? " * 20}]
    prompt = len(prompt_ids(tokenizer, asked, "the template opens it"))
    found = [
        chat(slow_thinker, messages=asked, max_tokens=100, **GUIDES["regex"])["usage"]
        for _ in range(2)
    ]
    first, second = (usage["prompt_tokens_details"]["cached_tokens"] for usage in found)
    assert first < prompt - 64
    assert second == prompt - 1


def test_a_client_that_leaves_after_the_reasoning(slow_thinker: Served) -> None:
    base = slow_thinker.url.removesuffix("/v1/models/model:predict")
    body = {"messages": QUESTION, "stream": True, **GUIDES["named tool"]}
    url = f"{base}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
        for line in answer.iter_lines():
            if "so." in line:  # the last word of the reasoning
                break
    assert settles(lambda: slow_thinker.running() == 0)
    assert settles(lambda: slow_thinker.metric("requests_in_flight") == 0)
    answered = chat(slow_thinker, **GUIDES["named tool"])
    check_content("named tool", answered)


def test_a_full_queue_does_not_part_reasoning_and_answer(
    slow_thinker: Served, released: Path
) -> None:
    """Two answers run and one waits: a fourth is refused, whatever step they are at."""
    base = slow_thinker.url.removesuffix("/v1/models/model:predict")
    body = {"messages": QUESTION, "max_tokens": 48}

    def ask(_: int) -> Json:
        return chat(slow_thinker, **GUIDES["named tool"])

    with ThreadPoolExecutor() as pool:
        released.write_bytes(RELEASED[:3])  # each answer stops in its reasoning
        try:
            answers = [pool.submit(ask, number) for number in range(3)]
            assert settles(lambda: slow_thinker.metric("requests_waiting") == 1)
            fourth = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        finally:
            released.write_bytes(RELEASED)
        for answer in answers:
            choice = answer.result()
            check_content("named tool", choice)
            assert choice["message"]["reasoning_content"] == THOUGHTS
    assert fourth.status_code == 429
