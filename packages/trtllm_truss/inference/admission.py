"""Admission control: run, queue or reject (429)."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.concurrency import batch_size, instance_count, kv_cache_tokens
from trtllm_truss.engines.inspection import Engine
from trtllm_truss.errors import QueueFull, TrussError
from trtllm_truss.settings.model import Serving, Settings

_TOKENS_PER_S = 2000
"""A request queues as if it had come later by its tokens at this rate: short ones go first."""

_FORESEEN_SHARE = 0.8
"""Of the wait budget, for a wait that is only an estimate: a late refusal is the worse one."""

_REQUESTS_REMEMBERED = 64
"""Over so many requests that ended, service times are smoothed."""

_SPARE_SHARE = 8
"""One more request for so many of the batch: a successor is there when one ends."""

_MAX_UTILIZATION = "max_utilization"


class Slot:
    """The right of one request to use the engine; releasing it twice is harmless."""

    __slots__ = ("_release", "since_s", "tokens")

    def __init__(self, release: Callable[[Slot], None], tokens: int, since_s: float) -> None:
        """Made by `Admission` alone.

        Args:
            release: is given this slot when it is released.
            tokens: reserved in the KV cache.
            since_s: when it was granted, by the admission's clock.
        """
        self._release: Callable[[Slot], None] | None = release
        self.tokens = tokens
        self.since_s = since_s

    def release(self) -> None:
        """Gives it on: the engine is done with the request, or has been told to stop it."""
        release, self._release = self._release, None
        if release is not None:
            release(self)


class ServiceTimeEstimator:
    """Smoothed times for which requests, and the tokens reserved for them, are held.

    Little's law turns them into a rate: what is running is replaced once in the mean time for
    which it is held, however unevenly requests end.

    Attributes:
        request_s: seconds for which a request is held; None while none has ended.
        token_s: the same for a reserved token: longer where the larger requests run longer.
    """

    def __init__(self) -> None:
        self.request_s: float | None = None
        self.token_s: float | None = None
        self._ended = 0
        self._tokens = 0.0
        self._token_seconds = 0.0

    def ended(self, tokens: int, held_s: float) -> None:
        """Takes in one request that was held for so long."""
        if self._ended < _REQUESTS_REMEMBERED:
            self._ended += 1
        weight = 1 / self._ended
        self._tokens += weight * (tokens - self._tokens)
        self._token_seconds += weight * (tokens * held_s - self._token_seconds)
        before_s = self.request_s or 0.0
        self.request_s = before_s + weight * (held_s - before_s)
        self.token_s = self._token_seconds / self._tokens


@dataclass(slots=True, order=True)
class Waiter:
    """A request in the queue; the one that sorts last goes first.

    Attributes:
        urgency: the negated virtual deadline, in seconds of a monotonic clock.
        number: the negated count of requests before it; no two are equal.
        tokens: of the KV cache that it needs.
        handicap_s: by how much its virtual deadline is later than its arrival.
        granted: what it waits for.
    """

    urgency: float
    number: int
    tokens: int = field(compare=False)
    handicap_s: float = field(compare=False)
    granted: asyncio.Future[Slot] = field(compare=False)


class WaitQueue:
    """A sorted list, so that the place of a request is known before it waits.

    Attributes:
        tokens: that all of them need.
    """

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def head(self) -> Waiter:
        """The one that goes next. There must be one."""
        return self._waiters[-1]

    def ahead_of(self, waiter: Waiter) -> int:
        """How many go before a request, be it in the queue or not yet."""
        return len(self._waiters) - bisect_left(self._waiters, waiter) - (waiter in self)

    def add(self, waiter: Waiter) -> None:
        """Puts a request into its place."""
        insort(self._waiters, waiter)
        self.tokens += waiter.tokens

    def pop(self) -> Waiter:
        """Takes out the one that goes next."""
        waiter = self._waiters.pop()
        self.tokens -= waiter.tokens
        return waiter

    def discard(self, waiter: Waiter) -> None:
        """Takes out a request, if it is still there."""
        if waiter in self:
            del self._waiters[bisect_left(self._waiters, waiter)]
            self.tokens -= waiter.tokens

    def __contains__(self, waiter: Waiter) -> bool:
        at = bisect_left(self._waiters, waiter)
        return at < len(self._waiters) and self._waiters[at] is waiter


class Admission:
    """Lets no more requests to the engine than it can run. Belongs to one event loop.

    Waiting requests are served by a virtual deadline: their arrival plus a handicap that grows
    with their tokens, up to half the wait budget. A head for which the KV cache has no room yet
    holds up those behind it, so it is overtaken only by requests that arrive, and are short
    enough, before its virtual deadline: nobody starves.

    Attributes:
        running: requests that hold a slot.
        reserved_tokens: what they take of the KV cache at most.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int | None,
        limits: Serving,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describes an engine that is idle.

        Args:
            max_requests: that may be with the engine at once, at least 1: its batch and about an
                eighth more, so that a successor is there when one ends.
            max_tokens: that its KV cache holds, None if unknown. A request that needs more is
                admitted alone.
            limits: the length of the queue and the wait budget.
            clock: seconds, monotonic.
        """
        self._max_requests = max_requests
        self._max_tokens = math.inf if max_tokens is None else max_tokens
        self._limits = limits
        self._clock = clock
        self._queue = WaitQueue()
        self._arrivals = 0
        self._service_time = ServiceTimeEstimator()
        self.running = 0
        self.reserved_tokens = 0

    @classmethod
    def for_engine(cls, settings: Settings, engine: Engine, capacity: Capacity | None) -> Admission:
        """The admission to one engine.

        The KV cache bounds the tokens reserved, as the engine itself reserves them; not with the
        policy `max_utilization`, by which it takes in more and pauses what does not fit.

        Args:
            settings: what the operator sets under `runtime` and `serving`.
            engine: what its folder says.
            capacity: what its KV cache holds on these GPUs; None if unknown.
        """
        instances = instance_count(settings, engine)
        batch = batch_size(settings, engine) * instances
        tokens = kv_cache_tokens(settings, capacity)
        if tokens is not None:
            tokens *= instances
        if settings.runtime.batch_scheduler_policy == _MAX_UTILIZATION:
            tokens = None
        return cls(batch + -(-batch // _SPARE_SHARE), tokens, settings.serving)

    @property
    def capacity(self) -> int:
        """Requests that it takes at most, running and waiting together."""
        return self._max_requests + self._limits.queue_limit

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    async def admit(self, tokens: int) -> Slot:
        """Waits for a place in the engine; cancelling the wait leaves the queue as it was.

        Args:
            tokens: what the request takes of the KV cache at most: its prompt and all tokens that
                it may generate; at least 1.

        Raises:
            QueueFull: too many wait, the wait is foreseen to be too long, or it has been.
            TrussError: what `fail_waiting` was given.
        """
        if not self._queue and self._has_room(tokens):
            return self._grant(tokens)
        waiter = self._enqueue(tokens)
        timeout_s = self._limits.queue_timeout_s
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, waiter)
        try:
            return await waiter.granted
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            timer.cancel()

    def fail_waiting(self, error: TrussError) -> None:
        """Ends every wait with an error: the engine is gone, and may be for minutes."""
        while self._queue:  # each raises its own copy, with its own traceback
            _refuse(self._queue.pop(), copy.copy(error))

    def _has_room(self, tokens: int) -> bool:
        if self.reserved_tokens + tokens > self._max_tokens:
            return self.running == 0
        return self.running < self._max_requests

    def _grant(self, tokens: int) -> Slot:
        self.running += 1
        self.reserved_tokens += tokens
        return Slot(self._released, tokens, self._clock())

    def _released(self, slot: Slot) -> None:
        self.running -= 1
        self.reserved_tokens -= slot.tokens
        self._service_time.ended(slot.tokens, self._clock() - slot.since_s)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._queue and self._has_room(self._queue.head.tokens):
            waiter = self._queue.pop()
            if not waiter.granted.done():  # else cancelled, and about to notice
                waiter.granted.set_result(self._grant(waiter.tokens))

    def _enqueue(self, tokens: int) -> Waiter:
        handicap_s = min(tokens / _TOKENS_PER_S, self._limits.queue_timeout_s / 2)
        self._arrivals += 1
        waiter = Waiter(
            urgency=-(self._clock() + handicap_s),
            number=-self._arrivals,
            tokens=tokens,
            handicap_s=handicap_s,
            granted=asyncio.get_running_loop().create_future(),
        )
        self._refuse_hopeless(waiter)
        self._queue.add(waiter)
        self._admit_waiting()  # a short one may have room where the head has none
        return waiter

    def _refuse_hopeless(self, waiter: Waiter) -> None:
        limits, waiting = self._limits, len(self._queue)
        wait_s = self._predicted_wait_s(waiter)
        bearable_s = _FORESEEN_SHARE * limits.queue_timeout_s
        if waiting >= limits.queue_limit:
            raise _queue_full(
                f"{waiting} requests are waiting for the engine, as many as may "
                "(serving.queue_limit)",
                wait_s - bearable_s,
            )
        if wait_s > bearable_s:
            raise _queue_full(
                f"{waiting} requests are waiting for the engine; the wait would be about "
                f"{wait_s:.0f} s, too long for serving.queue_timeout_s of "
                f"{limits.queue_timeout_s:g}",
                wait_s - bearable_s,
            )

    def _predicted_wait_s(self, waiter: Waiter) -> float:
        """Until so many requests, and so many tokens, have ended as must; 0 if nothing is known.

        Those ahead are taken to be of the mean size of those that wait; while the handicap lasts,
        as many may overtake it as end.
        """
        service_time, queue = self._service_time, self._queue
        if service_time.request_s is None or service_time.token_s is None:
            return 0.0
        ahead = queue.ahead_of(waiter)
        requests = ahead + 1 + self.running - self._max_requests
        wait_s = requests * service_time.request_s / self.running
        if self._max_tokens < math.inf:
            tokens_ahead = ahead * queue.tokens / max(1, len(queue))
            tokens = tokens_ahead + waiter.tokens + self.reserved_tokens - self._max_tokens
            wait_s = max(wait_s, tokens * service_time.token_s / self.reserved_tokens)
        return wait_s + waiter.handicap_s

    def _expire(self, waiter: Waiter) -> None:
        if waiter.granted.done():
            return
        wait_s = self._predicted_wait_s(waiter)
        self._queue.discard(waiter)
        _refuse(
            waiter,
            _queue_full(
                f"the request has waited {self._limits.queue_timeout_s:g} s for the engine, as "
                f"long as it may (serving.queue_timeout_s); {len(self._queue)} more are waiting",
                wait_s,
            ),
        )
        self._admit_waiting()  # it may have held up those behind it

    def _withdraw(self, waiter: Waiter) -> None:
        """Leaves nothing of a wait that was refused, or cancelled just as it was granted."""
        granted = waiter.granted
        if granted.cancel() or granted.cancelled():
            self._queue.discard(waiter)
            self._admit_waiting()
        elif granted.exception() is None:
            granted.result().release()


def _refuse(waiter: Waiter, error: TrussError) -> None:
    if not waiter.granted.done():
        waiter.granted.set_exception(error)


def _queue_full(reason: str, retry_after_s: float) -> QueueFull:
    seconds = max(1, math.ceil(retry_after_s))
    return QueueFull(f"{reason}. Try again in {seconds} s.", retry_after_s=seconds)
