"""Queue of requests with a guide, until the guide is compiled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from trtllm_truss.backends.token_model.request import GUIDE_TEXT, GenerationRequest
from trtllm_truss.backends.token_model.responses import ResponseSender, send_empty
from trtllm_truss.engines.cpu.openvino_genai.engine import Engine
from trtllm_truss.guides.compiler_worker import brief
from trtllm_truss.guides.guide import GuideFault, KeptGuides
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.requests import Guide

HEARTBEAT_INTERVAL_S = 0.5
"""Interval of empty responses to requests that wait for their guide."""

_KEPT_BYTES = 1 << 26  # of compiled guides, which the engine drops together
_NICENESS = 19


class Arrival(NamedTuple):
    """A request that has not begun.

    Attributes:
        cached_tokens: tokens of its prompt that the KV cache had; None while not measured.
    """

    request: GenerationRequest
    sender: ResponseSender
    cached_tokens: int | None = None


class GuidedRequests:
    """Checks guides, and compiles them in a thread of low priority, one at a time.

    A step that meets a new guide compiles it, and no request gets a token until then. A compiled
    guide costs a step milliseconds. While a guide compiles, no step may begin a request with a
    guide. For the scheduler's thread only; other threads call `wake` when a check or a compilation
    ends.
    """

    def __init__(self, engine: Engine, check: GuideValidator, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._check = check
        self._wake = wake
        self._unchecked: dict[Arrival, Future[int]] = {}
        self._checked: dict[Arrival, int] = {}  # and the memory of their compiled guides
        self._compiled = KeptGuides(_KEPT_BYTES)
        self._compiling: tuple[Guide, int, Future[None]] | None = None
        self._next_heartbeat = 0.0

    def take(self, arrival: Arrival) -> None:
        if arrival.request.guide_bytes is not None:
            self._checked[arrival] = arrival.request.guide_bytes
            return
        result = self._unchecked[arrival] = self._check.check(_guide(arrival))
        result.add_done_callback(lambda _: self._wake())

    @property
    def are_waiting(self) -> bool:
        return bool(self._unchecked or self._checked)

    @property
    def is_compiling(self) -> bool:
        return self._compiling is not None

    def advance(self, may_compile: bool) -> list[Arrival]:
        """Handle finished checks and compilations, and begin the next compilation.

        Args:
            may_compile: True if no request with a guide is about to begin.

        Returns:
            Requests with compiled guides, removed from the queue.
        """
        self._finish_checks()
        self._finish_compiling()
        ready = [arrival for arrival in self._checked if _guide(arrival) in self._compiled]
        for arrival in ready:
            del self._checked[arrival]
        if self._checked and may_compile and not ready and not self.is_compiling:
            arrival, compiled_bytes = next(iter(self._checked.items()))
            self._compile(_guide(arrival), compiled_bytes)
        self._send_heartbeats()
        return ready

    def remove(self, chosen: Callable[[Arrival], bool]) -> list[Arrival]:
        removed = [arrival for arrival in (*self._unchecked, *self._checked) if chosen(arrival)]
        for arrival in removed:
            if (result := self._unchecked.pop(arrival, None)) is not None:
                result.cancel()
            else:
                del self._checked[arrival]
        return removed

    def engine_is_new(self) -> None:
        """Note that the engine was reloaded without its compiled guides."""
        self._compiled.clear()
        self._compiling = None

    def close(self) -> None:
        self._check.close()

    def _finish_checks(self) -> None:
        for arrival, result in [item for item in self._unchecked.items() if item[1].done()]:
            del self._unchecked[arrival]
            error = result.exception()
            if error is None:
                self._checked[arrival] = result.result()
            elif isinstance(error, GuideFault):
                _refuse(arrival, str(error))
            else:
                arrival.sender.fail(str(error), caller_at_fault=False)

    def _finish_compiling(self) -> None:
        if self._compiling is None or not self._compiling[2].done():
            return
        (guide, compiled_bytes, result), self._compiling = self._compiling, None
        error = result.exception()
        if error is None:
            self._compiled.add(guide, compiled_bytes)
            return
        for arrival in self.remove(lambda arrival: arrival.request.guide == guide):
            if isinstance(error, RuntimeError):
                _refuse(arrival, brief(str(error)))
            else:
                arrival.sender.fail(f"The guide was not compiled: {error}", caller_at_fault=False)

    def _compile(self, guide: Guide, compiled_bytes: int) -> None:
        if not self._compiled.has_room(compiled_bytes):
            self._compiled.clear()
            self._engine.forget_guides()
        result: Future[None] = Future()
        result.add_done_callback(lambda _: self._wake())
        self._compiling = guide, compiled_bytes, result
        compiling = threading.Thread(target=self._compile_into, args=(guide, result), daemon=True)
        compiling.start()

    def _compile_into(self, guide: Guide, result: Future[None]) -> None:
        # The priority of this thread, and of threads that XGrammar starts in it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._engine.compile_guide(guide)
        except Exception as error:  # noqa: BLE001 - reported by the scheduler
            result.set_exception(error)
        else:
            result.set_result(None)

    def _send_heartbeats(self) -> None:
        """Send empty responses to the Truss, which treats silence as a hang."""
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_INTERVAL_S
        for arrival in self._checked:
            if arrival.request.streaming and arrival.request.guide_bytes is not None:
                send_empty(arrival.request, arrival.sender, final=False)


def _guide(arrival: Arrival) -> Guide:
    assert arrival.request.guide is not None
    return arrival.request.guide


def _refuse(arrival: Arrival, fault: str) -> None:
    arrival.sender.fail(f"{GUIDE_TEXT} cannot be followed: {fault}", caller_at_fault=True)
