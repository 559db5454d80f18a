"""Admission control: run, queue or reject (429)."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.errors import QueueFull, TrussError
from trtllm_truss.inference.service_time import ServiceTimeEstimator
from trtllm_truss.settings.model import Serving

_TOKENS_PER_S = 2000
"""Rate at which a request's tokens delay its virtual deadline, so that short requests go first."""

_FORESEEN_SHARE = 0.8
"""Share of the wait budget for predicted waits: a late rejection is worse than an early one."""

_COMPANY_S = 1.0
"""A call with several answers counts as alone once no request of its own has run for this time."""


class Slot:
    """A request's reservation of the engine, granted by `Admission`.

    Args:
        tokens: tokens reserved in the KV cache.
        since_s: time of the grant, by the admission's clock.
        of_call: the call has further requests.
    """

    __slots__ = ("_release", "of_call", "since_s", "tokens")

    def __init__(
        self, release: Callable[[Slot], None], tokens: int, since_s: float, *, of_call: bool
    ) -> None:
        self._release: Callable[[Slot], None] | None = release
        self.tokens = tokens
        self.since_s = since_s
        self.of_call = of_call

    def release(self) -> None:
        """Release the slot after the request has finished or was cancelled; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self)


@dataclass(slots=True, order=True)
class Waiter:
    """A queued request; the last one in sort order goes first.

    Attributes:
        urgency: negated virtual deadline, in seconds of a monotonic clock.
        number: negated arrival number; unique.
        tokens: KV cache tokens to reserve.
        handicap_s: delay of the virtual deadline after the arrival.
        granted: resolves to the slot.
        call: state shared with the call's other requests; None for a call with one request.
        is_behind: waits until another request of its call has left the queue.
        timer: stops the wait in the queue.
    """

    urgency: float
    number: int
    tokens: int = field(compare=False)
    handicap_s: float = field(compare=False)
    granted: asyncio.Future[Slot] = field(compare=False)
    call: Hashable = field(compare=False, default=None)
    is_behind: bool = field(compare=False, default=False)
    timer: asyncio.TimerHandle | None = field(compare=False, default=None)


class WaitQueue:
    """A sorted list that tells a request's position before it waits.

    Attributes:
        tokens: KV cache tokens of all queued requests.
    """

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def ahead_of(self, waiter: Waiter) -> int:
        """Count the requests ahead of one that is or will be queued."""
        return len(self._waiters) - bisect_left(self._waiters, waiter) - (waiter in self)

    def __iter__(self) -> Iterator[Waiter]:
        """Iterate from the first to the last request to run."""
        return reversed(self._waiters)

    def add(self, waiter: Waiter) -> None:
        insort(self._waiters, waiter)
        self.tokens += waiter.tokens

    def clear(self) -> list[Waiter]:
        """Remove and return all requests."""
        waiters, self._waiters, self.tokens = self._waiters, [], 0
        return waiters

    def discard(self, waiter: Waiter) -> None:
        """Remove a request if it is queued."""
        if waiter in self:
            del self._waiters[bisect_left(self._waiters, waiter)]
            self.tokens -= waiter.tokens

    def __contains__(self, waiter: Waiter) -> bool:
        at = bisect_left(self._waiters, waiter)
        return at < len(self._waiters) and self._waiters[at] is waiter


class Admission:
    """Limits concurrent requests to the engine's capacity. Belongs to one event loop.

    Waiting requests are ordered by virtual deadline: arrival plus a handicap that grows with the
    tokens, up to half the wait budget. A head that does not fit into the KV cache yet blocks the
    requests behind it. Only requests that are short enough and arrive before its virtual deadline
    overtake it, so no request starves.

    Only one request of a call is queued at a time, and the next one joins when it leaves, so a call
    with 256 prompts is never more than one request ahead of others. Its wait budget starts when it
    joins. While single-request calls run, calls with several requests are limited to a share of the
    engine; single requests overtake them once that share is used up, and so find a slot and short
    steps.

    Args:
        max_requests: maximum number of requests in the engine, at least 1.
        max_tokens: capacity of the KV cache in tokens; None if unknown. A request that needs more
            is admitted alone.
        limits: length of the queue and wait budget.
        cache_tokens: size of the KV cache where it is not a limit; None if unknown.
        call_share: share of `max_requests` for calls with several requests; at least one request.
        clock: seconds, monotonic.

    Attributes:
        max_requests: maximum number of requests in the engine.
        cache_tokens: size of the KV cache; 0 if unknown.
        running: number of requests that hold a slot.
        reserved_tokens: KV cache tokens reserved by them.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int | None,
        limits: Serving,
        *,
        cache_tokens: int | None = None,
        call_share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cache_tokens = max_tokens or cache_tokens or 0
        self.max_requests = max_requests
        self._max_tokens = math.inf if max_tokens is None else max_tokens
        self._limits = limits
        self._clock = clock
        self._queue = WaitQueue()
        self._behind: dict[Hashable, deque[Waiter]] = {}  # calls with a queued request
        self._behind_count = 0
        self._arrivals = 0
        self._service_time = ServiceTimeEstimator()
        self._call_limit = max(1, int(call_share * max_requests))
        self._of_calls = 0  # running requests of calls with several requests
        self._company_until = -math.inf
        self.running = 0
        self.reserved_tokens = 0

    @classmethod
    def of(cls, deployment: Deployment) -> Admission:
        """Derive the limits of an engine from its batch size and KV cache.

        With the policy `max_utilization` the KV cache sets no limit: the engine overcommits it and
        pauses requests that do not fit.
        """
        settings, engine = deployment.settings, deployment.engine
        schedulers = engine.scheduler_count(settings)
        batch = engine.batch_size(settings) * schedulers
        tokens = engine.kv_cache_tokens(settings, deployment.capacity)
        if tokens is not None:
            tokens *= schedulers
        limit = None if engine.overcommits(settings) else tokens
        share = engine.call_share
        return cls(batch, limit, settings.serving, cache_tokens=tokens, call_share=share)

    @property
    def capacity(self) -> int:
        """Maximum number of running and waiting requests together."""
        return self.max_requests + self._limits.queue_limit

    @property
    def kv_cache_tokens(self) -> int:
        """Capacity of the KV cache; 0 if it is unknown or sets no limit."""
        return 0 if self._max_tokens == math.inf else int(self._max_tokens)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue) + self._behind_count

    async def admit(self, tokens: int, call: Hashable = None) -> Slot:
        """Wait for a slot. Cancelling the wait removes the request from the queue.

        Args:
            tokens: KV cache tokens to reserve: prompt plus maximum output; at least 1.
            call: state shared with the call's other requests; None for a call with one request.

        Raises:
            QueueFull: the queue is full, or the predicted or actual wait is too long.
            TrussError: the error passed to `fail_waiting`.
        """
        if self._has_room(tokens) and self._may_run(call) and self._next() is None:
            return self._grant(tokens, call)
        waiter = self._enqueue(tokens, call)
        try:
            return await waiter.granted
        except BaseException:
            self._withdraw(waiter)
            raise

    def fail_waiting(self, error: TrussError) -> None:
        """Fail all waiting requests, because the engine is down for up to minutes."""
        waiting = [*self._behind.values(), self._queue.clear()]
        self._behind.clear()
        for waiter in chain.from_iterable(waiting):
            self._passes(waiter)
            _stop(waiter)
            _refuse(waiter, copy.copy(error))  # each raises its own, with its own traceback

    def _has_room(self, tokens: int) -> bool:
        if self.reserved_tokens + tokens > self._max_tokens:
            return self.running == 0
        return self.running < self.max_requests

    def _may_run(self, call: Hashable) -> bool:
        """Return whether the share of calls with several requests admits one of them."""
        if call is None or self._of_calls < self._call_limit:
            return True
        return self.running == self._of_calls and self._clock() > self._company_until

    def _next(self) -> Waiter | None:
        """Return the request that goes next once there is room."""
        return next((waiter for waiter in self._queue if self._may_run(waiter.call)), None)

    def _grant(self, tokens: int, call: Hashable) -> Slot:
        self.running += 1
        self._of_calls += call is not None
        self.reserved_tokens += tokens
        return Slot(self._released, tokens, self._clock(), of_call=call is not None)

    def _released(self, slot: Slot) -> None:
        self.running -= 1
        self._of_calls -= slot.of_call
        if not slot.of_call:
            self._company_until = self._clock() + _COMPANY_S
        self.reserved_tokens -= slot.tokens
        self._service_time.ended(slot.tokens, self._clock() - slot.since_s)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while (waiter := self._next()) is not None and self._has_room(waiter.tokens):
            self._queue.discard(waiter)
            if not waiter.granted.done():  # otherwise cancelled, and about to notice
                waiter.granted.set_result(self._grant(waiter.tokens, waiter.call))
            self._left(waiter)

    def _enqueue(self, tokens: int, call: Hashable) -> Waiter:
        handicap_s = min(tokens / _TOKENS_PER_S, self._limits.queue_timeout_s / 2)
        self._arrivals += 1
        waiter = Waiter(
            urgency=-(self._clock() + handicap_s),
            number=-self._arrivals,
            tokens=tokens,
            handicap_s=handicap_s,
            granted=asyncio.get_running_loop().create_future(),
            call=call,
        )
        if call in self._behind and self.waiting < self._limits.queue_limit:
            self._behind[call].append(waiter)
            waiter.is_behind = True
            self._behind_count += 1
            return waiter
        self._refuse_hopeless(waiter)
        self._join(waiter)
        self._admit_waiting()  # a short request may fit where the head does not
        return waiter

    def _join(self, waiter: Waiter) -> None:
        """Put a request into the queue."""
        loop, timeout_s = asyncio.get_running_loop(), self._limits.queue_timeout_s
        waiter.timer = loop.call_later(timeout_s, self._expire, waiter)
        self._queue.add(waiter)
        if waiter.call is not None:
            self._behind.setdefault(waiter.call, deque())

    def _left(self, waiter: Waiter) -> None:
        """Queue the next request of a call after one has left the queue."""
        _stop(waiter)
        behind = self._behind.get(waiter.call)
        if behind is None:
            return
        while behind:
            following = behind.popleft()
            self._passes(following)
            if not following.granted.done():  # else cancelled
                self._arrivals += 1
                following.number = -self._arrivals
                following.urgency = -(self._clock() + following.handicap_s)
                self._join(following)
                return
        del self._behind[waiter.call]

    def _passes(self, waiter: Waiter) -> None:
        """Stop counting a request as waiting behind another one of its call."""
        self._behind_count -= waiter.is_behind
        waiter.is_behind = False

    def _refuse_hopeless(self, waiter: Waiter) -> None:
        limits, waiting = self._limits, self.waiting
        wait_s = self._predicted_wait_s(waiter)
        bearable_s = _FORESEEN_SHARE * limits.queue_timeout_s
        if waiting >= limits.queue_limit:
            raise _queue_full(
                f"{waiting} requests are waiting for the engine, which is the limit "
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
        """Estimate the wait until enough requests and tokens are released; 0 without data.

        Assumes that the requests ahead have the mean size of the queue, and that each request that
        finishes during the handicap is replaced by one that overtakes.
        """
        service_time, queue = self._service_time, self._queue
        if service_time.request_s is None or service_time.token_s is None:
            return 0.0
        ahead = queue.ahead_of(waiter)
        requests = ahead + 1 + self.running - self.max_requests
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
        self._left(waiter)
        _refuse(
            waiter,
            _queue_full(
                f"the request has waited {self._limits.queue_timeout_s:g} s for the engine, which "
                f"is the limit (serving.queue_timeout_s); {self.waiting} more are waiting",
                wait_s,
            ),
        )
        self._admit_waiting()  # it may have blocked the requests behind it

    def _withdraw(self, waiter: Waiter) -> None:
        """Clean up after a wait that failed or was cancelled just as its slot was granted."""
        granted = waiter.granted
        if granted.cancel() or granted.cancelled():
            self._passes(waiter)
            if waiter in self._queue:
                self._queue.discard(waiter)
                self._left(waiter)
            self._admit_waiting()
        elif granted.exception() is None:
            granted.result().release()


def _stop(waiter: Waiter) -> None:
    if waiter.timer is not None:
        waiter.timer.cancel()


def _refuse(waiter: Waiter, error: TrussError) -> None:
    if not waiter.granted.done():
        waiter.granted.set_exception(error)


def _queue_full(reason: str, retry_after_s: float) -> QueueFull:
    seconds = max(1, math.ceil(retry_after_s))
    return QueueFull(f"{reason}. Try again in {seconds} s.", retry_after_s=seconds)
