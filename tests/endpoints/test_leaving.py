"""A request's memory is freed when its client leaves, without a garbage collection."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from starlette.requests import Request
from tests.support.paths import ROOT

from trtllm_truss.endpoints.guard import replace_watcher

PROGRAM = "tests.support.programs.leavers"
WAYS = [
    *("before_the_call", "before_predict", "after_the_head", "within_the_body"),
    *("while_it_is_encoded", "before_the_first_token", "before_the_end_of_several"),
    *("while_it_streams", "while_several_stream", "after_the_answer", "after_a_slow_answer"),
    *("after_a_stream", "after_a_refusal"),
]


@pytest.fixture(scope="module")
def left() -> dict[str, Any]:
    """Return the objects and bytes that 75 clients left behind, by way of leaving."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, *WAYS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {each.pop("way"): each for each in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("way", WAYS)
def test_leaving_leaves_nothing_to_the_garbage_collector(left: dict[str, Any], way: str) -> None:
    assert left[way] == {"alive": 0, "ours": {}, "held_bytes": 0}


@pytest.fixture
def truss_server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("truss_server")
    monkeypatch.setitem(sys.modules, "truss_server", module)
    return module


async def test_a_server_without_a_watcher_is_left_alone(truss_server: ModuleType) -> None:
    before = dict(vars(truss_server))
    replace_watcher()
    assert vars(truss_server) == before


def test_without_trusss_server_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "truss_server", raising=False)
    replace_watcher()
    assert "truss_server" not in sys.modules


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_watcher_keeps_trusss_interface(truss_server: Any, leaves: bool) -> None:
    truss_server._install_disconnect_watcher = None
    replace_watcher()
    polled = asyncio.Event()

    async def receive() -> dict[str, str]:
        polled.set()
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    request = Request({"type": "http"}, receive)
    truss_server._install_disconnect_watcher(request)
    with request.state.watch_disconnect() as gone:
        await polled.wait()
        await asyncio.sleep(0)
        assert gone.is_set() is leaves
