"""Long prompts: read into the KV cache in pieces, in turns with running requests.

The pipeline reads prompts one after the other, and a step that reads one delays every running
request: a long prompt would hold up the first token of each later request. It is therefore read
ahead. Each piece is a request for one token, and its blocks stay in the prefix cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import openvino_genai

from trtllm_truss.backends.openvino_genai.engine import KV_BLOCK_TOKENS, PREFILL_TOKENS, Engine
from trtllm_truss.backends.openvino_genai.guided import Arrival
from trtllm_truss.backends.openvino_genai.request import GenerationRequest

_PIECE_S = 0.2
"""Duration of a piece that the next one's size aims at."""
_FIRST_PIECE_TOKENS = PREFILL_TOKENS // 2
_MIN_PIECE_TOKENS, _MAX_PIECE_TOKENS = 2 * KV_BLOCK_TOKENS, 2 * PREFILL_TOKENS


class LongPrompts:
    """Requests whose prompt is not read yet, first come, first served.

    Args:
        engine: used in the scheduler's thread only.
        clock: seconds, monotonic.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._piece: openvino_genai.GenerationHandle | None = None
        self._piece_tokens = _FIRST_PIECE_TOKENS
        self._piece_began = 0.0
        self._rests_until = 0.0
        self._read_tokens = 0

    def takes(self, request: GenerationRequest) -> bool:
        """Return True for a prompt that one step cannot read, if the engine keeps what it read."""
        return self._engine.keeps_prompts and len(request.prompt) > PREFILL_TOKENS

    def add(self, arrival: Arrival) -> None:
        """Queue a request."""
        self._arrivals.append(arrival)

    @property
    def are_waiting(self) -> bool:
        """Whether any prompt is still to be read."""
        return bool(self._arrivals)

    @property
    def is_reading(self) -> bool:
        """Whether the next step reads a piece."""
        return self._piece is not None

    @property
    def current(self) -> GenerationRequest | None:
        """The request whose piece the engine holds."""
        return self._arrivals[0].request if self.is_reading else None

    def advance(
        self, *, others_run: bool, fits: Callable[[GenerationRequest], bool]
    ) -> Arrival | None:
        """Start the next piece if the last one has ended; call it before each step.

        While others run, they get as long without a piece as the last piece took.

        Args:
            others_run: whether the engine has anything else to do.
            fits: whether the KV cache has room for a request.

        Returns:
            A request whose prompt is in the cache but for its last piece, ready for admission.
        """
        if not self._arrivals or self._is_busy():
            return None
        prompt = self._arrivals[0].request.prompt
        if len(prompt) - self._read_tokens <= self._piece_tokens:
            self._restart()
            return self._arrivals.popleft()
        now = self._clock()
        if fits(self._arrivals[0].request) and not (others_run and now < self._rests_until):
            self._read_tokens += self._piece_tokens
            self._piece = self._engine.read_ahead(prompt[: self._read_tokens])
            self._piece_began = now
        return None

    def remove(self, chosen: Callable[[Arrival], bool]) -> list[Arrival]:
        """Take out requests."""
        removed = [arrival for arrival in self._arrivals if chosen(arrival)]
        if self._arrivals and self._arrivals[0] in removed:
            self._restart()
        self._arrivals = deque(a for a in self._arrivals if a not in removed)
        return removed

    def _is_busy(self) -> bool:
        if self._piece is None:
            return False
        if self._piece.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return True
        now = self._clock()
        took_s = max(now - self._piece_began, 1e-3)
        blocks = int(self._piece_tokens * _PIECE_S / took_s) // KV_BLOCK_TOKENS
        tokens = max(blocks * KV_BLOCK_TOKENS, _MIN_PIECE_TOKENS)
        self._piece_tokens = min(tokens, _MAX_PIECE_TOKENS)
        self._rests_until = now + took_s
        self._piece = None
        return False

    def _restart(self) -> None:
        """Begin with the next prompt."""
        if self._piece is not None:
            self._piece.cancel()
        self._piece = None
        self._piece_tokens = _FIRST_PIECE_TOKENS
        self._read_tokens = 0
