"""Run a fleet under a load in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.fleet.autoscaler import Autoscaler, Scaling
from benchmarks.fleet.replica import EngineModel, Replica, Request
from benchmarks.fleet.router import ROUTERS
from benchmarks.fleet.virtual_time import VirtualTimeLoop
from trtllm_truss.errors import EngineUnavailable, QueueFull
from trtllm_truss.settings.model import Serving

ZONES = 3
_ATTEMPTS = 2
_PROMPT_TOKENS, _TOKENS, _SPREAD = 512, 256, 0.7
_MOST_TOKENS = 4 * _TOKENS
_RATE_S, _MEAN_S = 60, 300
"""Windows of the autoscaler's query, for refusals and for the mean duration of an answer."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Load and disturbances of a fleet.

    Attributes:
        requests_per_s: returns the load at a time.
        seconds: duration.
        replicas: ready replicas at the start.
        scaling: None keeps the number constant.
        cold_start_s: time from the request for a replica until it serves.
        router: a name of `ROUTERS`.
        zone_lost_s: time at which zone 0 fails for good; None for never.
        counted_from_s: earlier requests are not counted, because the fleet fills.
        sample_s: interval between samples.
        model: the engines.
        limits: `serving`.
        seed: seed of arrivals, sizes and the router.
    """

    requests_per_s: Callable[[float], float]
    seconds: float
    replicas: int
    scaling: Scaling | None = None
    cold_start_s: float = 120
    router: str = "better of two"
    zone_lost_s: float | None = None
    counted_from_s: float = 0
    sample_s: float = 15
    model: EngineModel = field(default_factory=EngineModel)
    limits: Serving = field(default_factory=Serving)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at a time; counts are those since the previous sample."""

    at_s: float
    arrived: int
    refused: int
    lost: int
    ready: int
    paid: int
    running: int
    waiting: int


@dataclass(slots=True)
class Result:
    """Results of a run.

    Attributes:
        waits_s: waits of the answered requests.
        counts: requests by outcome: answered, refused (429), lost with their replica.
        replica_seconds: total time of all replicas, from the request for one until it stops.
        slot_share: used share of the ready replicas' batches.
        samples: in order.
    """

    waits_s: list[float]
    counts: Counter[str]
    replica_seconds: float
    slot_share: float
    samples: list[Sample]

    def share(self, end: str) -> float:
        return self.counts[end] / max(1, self.counts.total())

    def wait_s(self, quantile: float) -> float:
        """Return a quantile of the waits."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


def run(scenario: Scenario) -> Result:
    """Run a scenario; the same one has the same result."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(Fleet.play(scenario))
    finally:
        loop.close()


def mean_steps(model: EngineModel) -> float:
    """Return the mean steps of a request."""
    rng, count = random.Random(0), 20_000
    requests = [new_request(rng) for _ in range(count)]
    prompts = sum(request.prompt_tokens for request in requests) / model.prompt_tokens_per_step
    return (sum(request.tokens for request in requests) + prompts) / count


def new_request(rng: random.Random) -> Request:
    """Draw sizes with long tails, as in chats."""
    tokens = min(max(1, round(_TOKENS * rng.lognormvariate(0, _SPREAD))), _MOST_TOKENS)
    prompt = max(1, round(_PROMPT_TOKENS * rng.lognormvariate(0, _SPREAD)))
    return Request(prompt, _MOST_TOKENS, tokens)


class Fleet:
    """Replicas, the requests to them and the controller of their number."""

    @classmethod
    async def play(cls, scenario: Scenario) -> Result:
        return await cls(scenario)._play()

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random(scenario.seed)
        self._choose = ROUTERS[scenario.router](random.Random(scenario.seed), self._loop.time)
        self._zones = list(range(ZONES))
        self._ready = [self._replica(number % ZONES) for number in range(scenario.replicas)]
        self._draining: list[Replica] = []
        self._starting: list[asyncio.TimerHandle] = []
        self._wanted = scenario.replicas
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._waits_s: list[float] = []
        self._samples: list[Sample] = []
        self._refusals_s: deque[float] = deque()
        self._answers: deque[tuple[float, float]] = deque()
        self._replica_seconds = self._slots = self._slot_seconds = 0.0

    async def _play(self) -> Result:
        scenario, loop = self._scenario, self._loop
        loop.call_soon(self._arrive)
        tickers = [loop.create_task(self._sample())]
        if scenario.scaling is not None:
            tickers.append(loop.create_task(self._scale(scenario.scaling)))
        if scenario.zone_lost_s is not None:
            loop.call_at(scenario.zone_lost_s, self._lose_zone)
        await asyncio.sleep(scenario.seconds)
        for task in (*tickers, *self._tasks):
            task.cancel()
        await asyncio.gather(*tickers, *self._tasks, return_exceptions=True)
        slot_share = self._slot_seconds / max(1.0, self._slots)
        return Result(self._waits_s, self._counts, self._replica_seconds, slot_share, self._samples)

    def _replica(self, zone: int) -> Replica:
        return Replica(self._scenario.model, self._scenario.limits, zone)

    def _arrive(self) -> None:
        now_s = self._loop.time()
        if now_s > 0:
            self._new["arrived"] += 1
            task = self._loop.create_task(self._request(new_request(self._rng), now_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        gap_s = self._rng.expovariate(self._scenario.requests_per_s(now_s))
        self._loop.call_later(gap_s, self._arrive)

    async def _request(self, request: Request, arrived_s: float) -> None:
        end = "refused"
        for _ in range(_ATTEMPTS):
            if not self._ready:
                break
            try:
                waited_s = await self._choose(self._ready).serve(request)
            except QueueFull:  # the router tries another replica once
                end = "refused"
                continue
            except EngineUnavailable:
                end = "lost"
                break
            end = "answered"
            self._answers.append((self._loop.time(), self._loop.time() - arrived_s))
            if arrived_s >= self._scenario.counted_from_s:
                self._waits_s.append(waited_s)
            break
        if end == "refused":
            self._refusals_s.append(self._loop.time())
        self._new[end] += 1
        if arrived_s >= self._scenario.counted_from_s:
            self._counts[end] += 1

    def _lose_zone(self) -> None:
        self._zones.remove(0)
        lost = [one for one in (*self._ready, *self._draining) if one.zone == 0]
        self._ready = [one for one in self._ready if one.zone != 0]
        self._draining = [one for one in self._draining if one.zone != 0]
        for one in lost:
            one.lose()
        self._start_missing()  # the Deployment replaces its pods at once

    async def _scale(self, scaling: Scaling) -> None:
        autoscaler = Autoscaler(scaling)
        while True:
            await asyncio.sleep(scaling.interval_s)
            load = float(sum(one.in_flight for one in (*self._ready, *self._draining)))
            if scaling.counts_refused:
                load += self._refused_load()
            self._wanted = autoscaler.desired(self._loop.time(), self._wanted, load)
            self._start_missing()
            self._stop_surplus()

    def _refused_load(self) -> float:
        """Return the refusal rate times the mean duration of an answer (Little's law)."""
        now_s = self._loop.time()
        while self._refusals_s and self._refusals_s[0] < now_s - _RATE_S:
            self._refusals_s.popleft()
        while self._answers and self._answers[0][0] < now_s - _MEAN_S:
            self._answers.popleft()
        if not self._answers:
            return 0.0
        mean_s = sum(duration_s for _, duration_s in self._answers) / len(self._answers)
        return len(self._refusals_s) / _RATE_S * mean_s

    def _start_missing(self) -> None:
        while len(self._ready) + len(self._starting) < self._wanted:
            handle = self._loop.call_later(self._scenario.cold_start_s, self._add)
            self._starting.append(handle)

    def _stop_surplus(self) -> None:
        while len(self._ready) + len(self._starting) > self._wanted:
            if self._starting:
                self._starting.pop().cancel()
                continue
            one = self._ready.pop()
            one.is_draining = True
            self._draining.append(one)

    def _add(self) -> None:
        del self._starting[0]  # all take equally long
        crowds = Counter(one.zone for one in self._ready)
        self._ready.append(self._replica(min(self._zones, key=lambda zone: crowds[zone])))

    async def _sample(self) -> None:
        sample_s, batch = self._scenario.sample_s, self._scenario.model.batch
        while True:
            await asyncio.sleep(sample_s)
            self._draining = [one for one in self._draining if one.in_flight]
            replicas = [*self._ready, *self._draining]
            paid = len(replicas) + len(self._starting)
            running = sum(one.admission.running for one in replicas)
            if self._loop.time() >= self._scenario.counted_from_s:
                self._replica_seconds += paid * sample_s
                self._slots += len(replicas) * batch * sample_s
                self._slot_seconds += sum(
                    min(one.admission.running, batch) * sample_s for one in replicas
                )
            self._samples.append(
                Sample(
                    at_s=self._loop.time(),
                    arrived=self._new["arrived"],
                    refused=self._new["refused"],
                    lost=self._new["lost"],
                    ready=len(self._ready),
                    paid=paid,
                    running=running,
                    waiting=sum(one.admission.waiting for one in replicas),
                )
            )
            self._new.clear()
