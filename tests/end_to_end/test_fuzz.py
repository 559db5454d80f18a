"""Hundreds of random bodies: each invalid one gets a clear error, and the server survives."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from tests.support.truss_process import Served

BODIES = 800
CONCURRENCY = 16
FIELDS = [
    "prompt", "messages", "max_tokens", "stop_words", "stop", "bad_words", "beam_width",
    "repetition_penalty", "temperature", "top_k", "top_p", "presence_penalty",
    "frequency_penalty", "length_penalty", "min_tokens", "seed", "ignore_eos", "stream",
    "nonsense", "Prompt", "",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 1e-320, 2**31, 2**63, 2**64, -(2**63),
    10**40, "", " ", "x", "\x00", "\ud800", "é🤖日本語", "NaN", [], [[]], [None], [""], ["a", 1],
    [["a"]], {}, {"a": {"b": []}}, [{"role": "user"}], [{"role": "user", "content": "Hi"}],
    [{"role": 1, "content": None}], [{"role": "alien", "content": "Hi"}], "y" * 20_000, ["z"] * 300,
]  # fmt: skip


def random_body(chance: random.Random) -> bytes:
    body: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
    for _ in range(chance.randint(1, 4)):
        body[chance.choice(FIELDS)] = chance.choice(VALUES)
    if "max_tokens" in body and chance.random() < 0.5:
        body["max_tokens"] = chance.choice([1, 2])  # keeps valid requests short
    raw = json.dumps(body).encode()
    match chance.randint(0, 9):
        case 0:
            return raw[: chance.randint(0, len(raw))]
        case 1:
            where = chance.randint(0, len(raw))
            return raw[:where] + chance.randbytes(chance.randint(1, 4)) + raw[where:]
        case 2:
            return json.dumps(chance.choice(VALUES)).encode()
    return raw


async def answers(url: str, bodies: list[bytes]) -> list[tuple[int, str]]:
    gate = asyncio.Semaphore(CONCURRENCY)
    async with httpx.AsyncClient(timeout=60) as client:

        async def ask(body: bytes) -> tuple[int, str]:
            async with gate:
                answer = await client.post(url, content=body)
                return answer.status_code, answer.text

        return await asyncio.gather(*map(ask, bodies))


@pytest.mark.thorough
async def test_no_body_harms_the_server(server: Served) -> None:
    chance = random.Random(20)
    bodies = [random_body(chance) for _ in range(BODIES)]
    refused = 0
    for body, (status, text) in zip(bodies, await answers(server.url, bodies), strict=True):
        assert status == 200 or 400 <= status < 500, (status, body[:300], text)
        if status != 200:
            refused += 1
            error = json.loads(text)["error"]
            assert error["message"], body[:300]
            assert error["code"] in ("invalid_request", "context_length_exceeded"), text
    assert refused > BODIES // 2
    assert server.post({"prompt": "Hi", "max_tokens": 3}).status_code == 200
