"""Bodies of disproportionate cost: each error names the field and the limit."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from benchmarks.load.hostile_bodies import CORPUS, LIMIT_BYTES, HostileBody, generated
from tests.support.truss_process import Served

from trtllm_truss.settings.model import Serving

_MEMORY_MARGIN_BYTES = 100 << 20
_MEMORY_LIMIT_S = 10
_PAGE_BYTES = 4096


def resident_bytes(server: Served) -> int:
    """Return the memory of Truss's server and of Triton."""
    pages = 0
    for pid in server.processes():
        pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def ask(server: Served, route: str, body: bytes) -> httpx.Response:
    base = server.url.removesuffix("/v1/models/model:predict")
    return httpx.post(base + route, content=body, timeout=60)


def check_still_serves(server: Served) -> None:
    answer = server.post({"prompt": "Hi", "max_tokens": 2, "stream": False})
    assert answer.status_code == 200, answer.text


def test_the_limit_is_the_default() -> None:
    assert Serving().max_body_bytes == LIMIT_BYTES


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len({body.name for body in CORPUS}) == len(CORPUS) >= 40


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda body: body.name)
def test_a_hostile_body_is_refused_by_field_and_limit(server: Served, hostile: HostileBody) -> None:
    answer = ask(server, hostile.route, hostile.make())
    assert answer.status_code == hostile.status, answer.text[:500]
    assert len(answer.content) < 2000
    body = answer.json()
    message = body["error"] if isinstance(body["error"], str) else body["error"]["message"]
    assert all(part in message for part in hostile.message), message
    check_still_serves(server)


def test_generated_bodies_are_refused_and_leave_no_memory(server: Served) -> None:
    check_still_serves(server)
    before = resident_bytes(server)
    statuses = set()
    for route, body in generated(60, seed=11):
        answer = ask(server, route, body)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text[:300]
        statuses.add(answer.status_code)
    assert 400 in statuses
    check_still_serves(server)
    deadline = time.monotonic() + _MEMORY_LIMIT_S
    while resident_bytes(server) > before + _MEMORY_MARGIN_BYTES:
        assert time.monotonic() < deadline, (before, resident_bytes(server))
        time.sleep(0.2)
