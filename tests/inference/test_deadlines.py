"""Deadlines of requests, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.engine import FakeEngine
from tests.support.virtual_time import virtually

from trtllm_truss.errors import DeadlineExceeded
from trtllm_truss.requests import GenerationEnd, GenerationRequest, TextDelta
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer

LIMITS = Serving(
    chunk_interval_ms=0, first_token_timeout_s=5, idle_timeout_s=2, request_timeout_s=8
)


async def read(engine: FakeEngine, items: list[TextDelta | GenerationEnd]) -> None:
    request = GenerationRequest(prompt="Hi", max_tokens=50)
    async for together in engine.generator.generate([request], call_id="call"):
        items += together


@pytest.mark.parametrize(
    ("steps", "setting", "after_s"),
    [
        ([6.0, "late"], "first_token_timeout_s", 5.0),
        (["one", 1.9, " two", 2.1, " three"], "idle_timeout_s", 3.9),
        (["one", *[1.5, " more"] * 9], "request_timeout_s", 8.0),
        ([" more", *[0.0, " more"] * 3, *[1.0, " more"] * 20], "request_timeout_s", 8.0),
    ],
)
def test_a_passed_deadline_ends_the_request(
    tokenizer: TextTokenizer, steps: list[Any], setting: str, after_s: float
) -> None:
    @virtually
    async def play() -> None:
        engine = FakeEngine(lambda _: steps, tokenizer, limits=LIMITS)
        with pytest.raises(DeadlineExceeded, match=rf"serving\.{setting}"):
            await read(engine, [])
        assert asyncio.get_running_loop().time() == pytest.approx(after_s)
        assert engine.ended == ["call"]
        assert engine.counted("requests_failed") == 1
        assert engine.admission.running == 0

    play()


@virtually
async def test_an_answer_within_its_deadlines_is_complete(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [4.9, "one", 1.9, " two"], tokenizer, limits=LIMITS)
    items: list[TextDelta | GenerationEnd] = []
    await read(engine, items)
    assert isinstance(items[-1], GenerationEnd)


@virtually
async def test_a_slow_reader_gets_the_complete_answer(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["one", " two"], tokenizer, limits=LIMITS)
    request = GenerationRequest(prompt="Hi", max_tokens=50)
    texts = []
    async for items in engine.generator.generate([request], call_id="call"):
        await asyncio.sleep(7.9)
        texts += [item.text if isinstance(item, TextDelta) else "end" for item in items]
    assert texts == ["one", " two", "end"]
