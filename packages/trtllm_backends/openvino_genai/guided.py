"""Requests that wait for their guide or their long prompt before they run.

The pipeline processes prompts one after the other, and a step with a prompt delays every running
request, so a long prompt would delay the first token of each later request. It is therefore
processed ahead in parts, alternating with running requests. Each part is a one-token request, whose
blocks stay in the prefix cache.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

import openvino_genai

from trtllm_backends.openvino_genai.engine import PREFILL_TOKENS, GenAiEngine
from trtllm_backends.token_model.request import GUIDE_TEXT, TensorRequest
from trtllm_backends.token_model.responses import ResponseSender, send_empty
from trtllm_truss.engines.cpu import KV_BLOCK_TOKENS
from trtllm_truss.guides.compiler_worker import brief
from trtllm_truss.guides.guide import CheckedGuide, GuideFault, KeptGuides
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.requests import Guide

HEARTBEAT_INTERVAL_S = 0.25
"""Interval of empty responses to requests that wait for their guide."""

_KEPT_BYTES = 1 << 26  # of compiled guides, which the engine drops all at once
NICENESS = 10
"""Leaves a tenth of a busy core; at 19, a second of work takes a minute while requests wait."""


class Arrival(NamedTuple):
    """A request that has not started.

    Attributes:
        cached_tokens: prompt tokens found in the KV cache; None if not measured yet.
    """

    request: TensorRequest
    sender: ResponseSender
    cached_tokens: int | None = None


class GuidedRequests:
    """Checks guides and compiles them in a thread, one at a time, at low priority next to requests.

    A step that meets a new guide compiles it, and no request gets a token meanwhile. A compiled
    guide costs a step milliseconds. While a guide compiles, no step may start a request with a
    guide. For the scheduler's thread only; other threads call `wake` when a check or compilation
    has finished.
    """

    def __init__(
        self, engine: GenAiEngine, check: GuideValidator, wake: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._check = check
        self._wake = wake
        self._unchecked: dict[Arrival, Future[CheckedGuide]] = {}
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

    def advance(self, may_compile: bool, *, others_run: bool) -> list[Arrival]:
        """Handle finished checks and compilations, and start the next compilation.

        Args:
            may_compile: no request with a guide is about to start.
            others_run: requests are running, which a compilation should not slow down.

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
            self._compile(_guide(arrival), compiled_bytes, NICENESS if others_run else 0)
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
        """Record that the engine was reloaded without its compiled guides."""
        self._compiled.clear()
        self._compiling = None

    def close(self) -> None:
        self._check.close()

    def _finish_checks(self) -> None:
        for arrival, result in [item for item in self._unchecked.items() if item[1].done()]:
            del self._unchecked[arrival]
            error = result.exception()
            if error is None:
                checked = result.result()  # the grammar of a schema, which GenAI would break
                request = replace(arrival.request, guide=checked.guide)
                self._checked[arrival._replace(request=request)] = checked.kept_bytes
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

    def _compile(self, guide: Guide, compiled_bytes: int, niceness: int) -> None:
        if not self._compiled.has_room(compiled_bytes):
            self._compiled.clear()
            self._engine.forget_guides()
        result: Future[None] = Future()
        result.add_done_callback(lambda _: self._wake())
        self._compiling = guide, compiled_bytes, result
        given = guide, result, niceness
        compiling = threading.Thread(target=self._compile_into, args=given, daemon=True)
        compiling.start()

    def _compile_into(self, guide: Guide, result: Future[None], niceness: int) -> None:
        # The priority of this thread, and of threads that XGrammar starts in it.
        if niceness:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
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


_PART_S = 0.2
"""Target duration of a part; determines the size of the next one."""
_FIRST_PART_TOKENS = PREFILL_TOKENS // 2
_MIN_PART_TOKENS, _MAX_PART_TOKENS = 2 * KV_BLOCK_TOKENS, 2 * PREFILL_TOKENS


class LongPrompts:
    """Queue of requests with long prompts, in order of arrival; for one thread."""

    def __init__(self, engine: GenAiEngine) -> None:
        self._engine = engine
        self._arrivals: deque[Arrival] = deque()
        self._part: openvino_genai.GenerationHandle | None = None
        self._part_tokens = _FIRST_PART_TOKENS
        self._part_began = 0.0
        self._rests_until = 0.0
        self._read_tokens = 0

    def takes(self, request: TensorRequest) -> bool:
        """Return True for a prompt too long for one step, if the engine keeps what it processed."""
        return self._engine.keeps_prompts and len(request.prompt) > PREFILL_TOKENS

    def add(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)

    @property
    def are_waiting(self) -> bool:
        return bool(self._arrivals)

    @property
    def is_reading(self) -> bool:
        return self._part is not None

    @property
    def current(self) -> TensorRequest | None:
        return self._arrivals[0].request if self.is_reading else None

    def advance(
        self,
        *,
        others_run: bool,
        fits: Callable[[TensorRequest], bool],
        measured: Callable[[Arrival], Arrival],
    ) -> Arrival | None:
        """Start the next part if the last one has finished; call it before each step.

        While other requests run, pause as long as the last part took before starting the next.

        Args:
            others_run: other requests are running.
            fits: returns True if the KV cache has room for a request.
            measured: called with each request before its first part; its result replaces the
                request.

        Returns:
            A request whose prompt is cached except for its last part, ready for admission.
        """
        if not self._arrivals or self._is_busy():
            return None
        prompt = self._arrivals[0].request.prompt
        if len(prompt) - self._read_tokens <= self._part_tokens:
            return self._next()
        now = time.monotonic()
        if fits(self._arrivals[0].request) and not (others_run and now < self._rests_until):
            if self._read_tokens == 0:
                self._arrivals[0] = measured(self._arrivals[0])
                # Each part computes its last token, cached or not.
                self._read_tokens = self._arrivals[0].cached_tokens or 0
                if len(prompt) - self._read_tokens <= PREFILL_TOKENS:
                    return self._next()
            self._read_tokens += self._part_tokens
            self._part = self._engine.read_ahead(prompt[: self._read_tokens])
            self._part_began = now
        return None

    def remove(self, chosen: Callable[[Arrival], bool]) -> list[Arrival]:
        removed = [arrival for arrival in self._arrivals if chosen(arrival)]
        if self._arrivals and self._arrivals[0] in removed:
            self._restart()
        self._arrivals = deque(a for a in self._arrivals if a not in removed)
        return removed

    def _next(self) -> Arrival:
        """Remove the request whose prompt is cached up to its last part."""
        self._restart()
        return self._arrivals.popleft()

    def _is_busy(self) -> bool:
        if self._part is None:
            return False
        if self._part.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return True
        now = time.monotonic()
        took_s = max(now - self._part_began, 1e-3)
        blocks = int(self._part_tokens * _PART_S / took_s) // KV_BLOCK_TOKENS
        tokens = max(blocks * KV_BLOCK_TOKENS, _MIN_PART_TOKENS)
        self._part_tokens = min(tokens, _MAX_PART_TOKENS)
        self._rests_until = now + took_s
        self._part = None
        return False

    def _restart(self) -> None:
        if self._part is not None:
            self._part.cancel()
        self._part = None
        self._part_tokens = _FIRST_PART_TOKENS
        self._read_tokens = 0
