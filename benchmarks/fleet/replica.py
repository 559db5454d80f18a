"""One replica: the server's admission in front of a modelled engine."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass

from trtllm_truss.errors import EngineUnavailable
from trtllm_truss.inference.admission import Admission
from trtllm_truss.settings.model import Serving


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Speed of an engine.

    Attributes:
        batch: requests that generate at once.
        kv_tokens: capacity of the KV cache.
        step_s: duration of a step with one request.
        row_s: time that each further request adds to a step.
        prompt_tokens_per_step: prompt tokens that take as long to process as one more token.
    """

    batch: int = 64
    kv_tokens: int = 128 * 1024
    step_s: float = 0.020
    row_s: float = 0.0002
    prompt_tokens_per_step: int = 128

    def tokens_per_s(self, running: int) -> float:
        """Return the tokens per second of each of `running` requests."""
        return 1 / (self.step_s + self.row_s * running)

    def requests_per_s(self, steps: float) -> float:
        """Return the maximum requests per second, each of so many steps on average."""
        return self.batch * self.tokens_per_s(self.batch) / steps


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        prompt_tokens: length of the prompt.
        max_tokens: the client's limit; reserved in the KV cache.
        tokens: number of tokens that the model generates.
    """

    prompt_tokens: int
    max_tokens: int
    tokens: int

    @property
    def reserved_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


class Engine:
    """In-flight batching as a fluid: all running requests progress equally fast."""

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._steps = 0.0
        self._since_s = self._loop.time()
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def generate(self, steps: float) -> asyncio.Future[None]:
        """Start a request; the future resolves after its number of steps.

        Admission keeps requests beyond the batch out.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self._advance()
        self._number += 1
        heapq.heappush(self._running, (self._steps + steps, self._number, done))
        self._schedule()
        return done

    def fail(self, error: Exception) -> None:
        """Fail every request."""
        if self._timer is not None:
            self._timer.cancel()
        futures = [done for _, _, done in self._running]
        self._running.clear()
        for done in futures:
            if not done.done():
                done.set_exception(error)

    def _advance(self) -> None:
        now_s = self._loop.time()
        passed_s, self._since_s = now_s - self._since_s, now_s
        self._steps += passed_s * self._model.tokens_per_s(len(self._running))

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = self._running[0][0] - self._steps
        delay_s = left / self._model.tokens_per_s(len(self._running))
        self._timer = self._loop.call_at(self._since_s + max(delay_s, 0.0), self._end_first)

    def _end_first(self) -> None:
        self._advance()
        _, _, done = heapq.heappop(self._running)
        if not done.done():
            done.set_result(None)
        self._timer = None
        if self._running:
            self._schedule()


class Replica:
    """A server.

    Args:
        model: its engine.
        limits: `serving`.
        zone: where it runs.

    Attributes:
        admission: the server's own class.
        is_draining: finishes its requests and receives no more.
        is_lost: its zone has failed.
    """

    def __init__(self, model: EngineModel, limits: Serving, zone: int) -> None:
        loop = asyncio.get_running_loop()
        self._model = model
        self.admission = Admission(model.batch, model.kv_tokens, limits, clock=loop.time)
        self.engine = Engine(model)
        self.zone = zone
        self.is_draining = False
        self.is_lost = False

    @property
    def in_flight(self) -> int:
        """Running and waiting requests, as seen by a router or an autoscaler."""
        return self.admission.running + self.admission.waiting

    async def serve(self, request: Request) -> float:
        """Serve a request; return the seconds that it waited.

        Raises:
            QueueFull: admission refuses it.
            EngineUnavailable: the replica is lost meanwhile.
        """
        loop = asyncio.get_running_loop()
        arrived_s = loop.time()
        slot = await self.admission.admit(request.reserved_tokens)
        waited_s = loop.time() - arrived_s
        try:
            steps = request.tokens + request.prompt_tokens / self._model.prompt_tokens_per_step
            await self.engine.generate(steps)
        finally:
            slot.release()
        return waited_s

    def lose(self) -> None:
        """Fail all requests, as when the host is lost."""
        self.is_lost = True
        error = EngineUnavailable("the replica is lost")
        self.admission.fail_waiting(error)
        self.engine.fail(error)
