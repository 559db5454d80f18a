"""Memory is given back when it has grown, at a bounded cost."""

from __future__ import annotations

import gc
import threading

import pytest

from trtllm_truss.serving import memory
from trtllm_truss.serving.memory import AGAIN_S, GROWTH_BYTES, MemoryKeeper

MIB = 1 << 20


class Process:
    """A process of a certain size. A trim frees `trimmed` bytes, a collection takes `cost_s`.

    Attributes:
        done: the collected generations, and None for a trim.
    """

    def __init__(self) -> None:
        self.size, self.trimmed, self.now_s, self.cost_s = 100 * MIB, 0, 0.0, 0.01
        self.is_idle = False
        self.done: list[int | None] = []
        self.keeper = MemoryKeeper(
            lambda: self.size, self._trim, self._collect, lambda: self.is_idle, lambda: self.now_s
        )

    def _trim(self) -> None:
        self.done.append(None)
        self.size -= self.trimmed

    def _collect(self, generation: int) -> None:
        self.done.append(generation)
        self.now_s += self.cost_s

    def look(self, size: int, after_s: float = 1.0) -> list[int | None]:
        """Return what one look has done."""
        self.size = size
        self.now_s += after_s
        self.done.clear()
        self.keeper.look()
        return [*self.done]


def test_growth_is_given_back_at_once() -> None:
    process = Process()
    assert process.look(100 * MIB + GROWTH_BYTES - 1) == []
    assert process.look(100 * MIB + GROWTH_BYTES) == [None, 1, None]
    assert process.look(99 * MIB + 2 * GROWTH_BYTES) == []
    assert process.look(100 * MIB + 2 * GROWTH_BYTES) == [None, 1, None]


def test_nothing_is_collected_if_a_trim_is_enough() -> None:
    process = Process()
    process.trimmed = GROWTH_BYTES
    assert process.look(101 * MIB + GROWTH_BYTES) == [None]


def test_what_is_freed_later_is_given_back_later() -> None:
    process = Process()
    assert process.look(500 * MIB) == [None, 1, None]
    assert process.look(500 * MIB) == []
    assert process.look(500 * MIB, AGAIN_S) == [None]
    assert process.look(150 * MIB, AGAIN_S) == []


def test_all_generations_are_collected_while_no_request_runs() -> None:
    process = Process()
    process.look(500 * MIB)
    process.is_idle = True
    assert process.look(500 * MIB, AGAIN_S) == [None, 2, None]


def test_an_expensive_collection_is_rare() -> None:
    process = Process()
    process.cost_s = 0.3
    assert process.look(500 * MIB) == [None, 1, None]
    assert process.look(900 * MIB, 29.0) == []
    assert process.look(900 * MIB, 2.0) == [None, 1, None]


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
