"""Memory is given back when it has grown, at a bounded cost."""

from __future__ import annotations

import gc
import threading

import pytest

from trtllm_truss.serving import memory
from trtllm_truss.serving.memory import AGAIN_S, GROWTH_BYTES, MemoryKeeper

MIB = 1 << 20


class Process:
    """A process of a certain size; giving back takes `cost_s` and frees `freed`."""

    def __init__(self) -> None:
        self.size, self.freed, self.now_s, self.cost_s = 100 * MIB, 0, 0.0, 0.01
        self.is_idle = False
        self.given: list[int] = []
        self.keeper = MemoryKeeper(
            lambda: self.size, self._give_back, lambda: self.is_idle, lambda: self.now_s
        )

    def _give_back(self, generation: int) -> None:
        self.given.append(generation)
        self.size -= self.freed
        self.now_s += self.cost_s

    def look(self, size: int, after_s: float = 1.0) -> int:
        """Return how often memory was given back so far."""
        self.size = size
        self.now_s += after_s
        self.keeper.look()
        return len(self.given)


def test_growth_is_given_back_at_once() -> None:
    process = Process()
    assert process.look(100 * MIB + GROWTH_BYTES - 1) == 0
    assert process.look(100 * MIB + GROWTH_BYTES) == 1
    assert process.look(99 * MIB + 2 * GROWTH_BYTES) == 1
    assert process.look(100 * MIB + 2 * GROWTH_BYTES) == 2


def test_what_is_freed_later_is_given_back_later() -> None:
    process = Process()
    assert process.look(500 * MIB) == 1
    assert process.look(500 * MIB) == 1
    assert process.look(500 * MIB, AGAIN_S) == 2
    assert process.look(150 * MIB, AGAIN_S) == 2


def test_all_generations_are_collected_while_no_request_runs() -> None:
    process = Process()
    process.look(500 * MIB)
    process.is_idle = True
    process.look(500 * MIB, AGAIN_S)
    assert process.given == [1, 2]


def test_an_expensive_collection_is_rare() -> None:
    process = Process()
    process.cost_s = 0.3
    assert process.look(500 * MIB) == 1
    assert process.look(900 * MIB, 29.0) == 1
    assert process.look(900 * MIB, 2.0) == 2


def test_the_watch_ends_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds = gc.get_threshold()
    monkeypatch.setattr(memory, "_LOOK_S", 0.001)
    looked = threading.Event()
    monkeypatch.setattr(MemoryKeeper, "look", lambda self: looked.set())
    before = set(threading.enumerate())
    try:
        end = memory.settle_memory(lambda: True)
        (watch,) = set(threading.enumerate()) - before
        assert looked.wait(30)
        end()
        watch.join(30)
        assert not watch.is_alive()
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
