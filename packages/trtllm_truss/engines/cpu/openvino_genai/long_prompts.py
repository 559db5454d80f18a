"""Read long prompts into the KV cache in parts, in turns with running requests.

The pipeline reads prompts one after the other, and a step that reads one delays every running
request: a long prompt would delay the first token of each later request. It is therefore read
ahead. Each part is a request for one token, and its blocks stay in the prefix cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import openvino_genai

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.engines.cpu.openvino_genai.engine import KV_BLOCK_TOKENS, PREFILL_TOKENS, Engine
from trtllm_truss.engines.cpu.openvino_genai.guided import Arrival

_PART_S = 0.2
"""Target duration of a part; sizes the next one."""
_FIRST_PART_TOKENS = PREFILL_TOKENS // 2
_MIN_PART_TOKENS, _MAX_PART_TOKENS = 2 * KV_BLOCK_TOKENS, 2 * PREFILL_TOKENS


class LongPrompts:
    """Queue of requests with unread prompts, first come, first served; for one thread."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._part: openvino_genai.GenerationHandle | None = None
        self._part_tokens = _FIRST_PART_TOKENS
        self._part_began = 0.0
        self._rests_until = 0.0
        self._read_tokens = 0

    def takes(self, request: GenerationRequest) -> bool:
        """Return True for a prompt that one step cannot read, if the engine keeps what it read."""
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
    def current(self) -> GenerationRequest | None:
        return self._arrivals[0].request if self.is_reading else None

    def advance(
        self,
        *,
        others_run: bool,
        fits: Callable[[GenerationRequest], bool],
        measured: Callable[[Arrival], Arrival],
    ) -> Arrival | None:
        """Start the next part if the last one has ended; call it before each step.

        While other requests run, they get as much time without a part as the last part took.

        Args:
            others_run: True if other requests run.
            fits: returns True if the KV cache has room for a request.
            measured: called with each request before its first part; its result replaces it.

        Returns:
            A request whose prompt is cached except for its last part, ready for admission.
        """
        if not self._arrivals or self._is_busy():
            return None
        prompt = self._arrivals[0].request.prompt
        if len(prompt) - self._read_tokens <= self._part_tokens:
            self._restart()
            return self._arrivals.popleft()
        now = self._clock()
        if fits(self._arrivals[0].request) and not (others_run and now < self._rests_until):
            if self._read_tokens == 0:
                self._arrivals[0] = measured(self._arrivals[0])
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

    def _is_busy(self) -> bool:
        if self._part is None:
            return False
        if self._part.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return True
        now = self._clock()
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
