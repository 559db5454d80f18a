"""The count of reasoning tokens if the closing marker has several tokens.

A model's own tokenizer has one token for it; a parser that `serving.reasoning_parser` names may
fit a model without.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import ENGINE, FakeEngine
from tests.support.smollm2 import smollm2_tokenizer

from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.settings.model import Serving

HELLO = [{"role": "user", "content": "Hello"}]
REASONING, TEXT = "<think>Hm. So it is.</think>", "\n\nOslo is a city."
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 100},
}
PLACES = {
    "/v1/chat/completions": ("completion_tokens_details", "reasoning_tokens"),
    "/v1/responses": ("output_tokens_details", "reasoning_tokens"),
    "/v1/messages": ("output_tokens_details", "thinking_tokens"),
}


async def counted(path: str, pieces: list[str], *, streamed: bool) -> tuple[int, int]:
    """Return the tokens of reasoning and of the whole answer."""
    tokenizer = smollm2_tokenizer()
    engine = FakeEngine(
        lambda request: pieces,
        tokenizer,
        engine=replace(ENGINE, max_sequence_tokens=4096, max_input_tokens=4095),
        limits=Serving(chunk_interval_ms=0, reasoning_parser="qwen3"),
        kv_cache_tokens=4096,
    )
    routes = build_routes(engine, {})  # type: ignore[arg-type]
    route = Route(path, routes[path].__call__, methods=["POST"])
    body = BODIES[path] | ({"stream": True} if streamed else {})
    if streamed and "chat" in path:
        body["stream_options"] = {"include_usage": True}
    transport = httpx.ASGITransport(Starlette(routes=[route]))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    lines = (line.removeprefix("data: ") for line in response.text.splitlines())
    events = [json.loads(line) for line in lines if line.startswith("{")]
    found = [event.get("response", event).get("usage") for event in events]
    usage = [each for each in found if each][-1]
    group, name = PLACES[path]
    whole = usage.get("completion_tokens", usage.get("output_tokens"))
    return usage[group][name], whole


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_reasoning_is_counted_in_every_api(path: str, *, streamed: bool) -> None:
    tokenizer = smollm2_tokenizer()
    ends = tokenizer.encode("</think>", add_special_tokens=False)
    assert len(ends) > 1
    reasoned = len(tokenizer.encode(REASONING, add_special_tokens=False))
    whole = reasoned + len(tokenizer.encode(TEXT, add_special_tokens=False))
    assert await counted(path, [REASONING, TEXT], streamed=streamed) == (reasoned, whole)


@pytest.mark.parametrize("path", BODIES)
async def test_the_marker_may_come_in_parts(path: str) -> None:
    tokenizer = smollm2_tokenizer()
    pieces = ["<think>Hm.", "</", "think", ">", "Yes."]
    each = [len(tokenizer.encode(piece, add_special_tokens=False)) for piece in pieces]
    assert await counted(path, pieces, streamed=True) == (sum(each[:-1]), sum(each))


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_without_reasoning_has_none(path: str) -> None:
    reasoned, _ = await counted(path, [TEXT], streamed=False)
    assert reasoned == 0
