"""Figures of one server: start phases, the request log, and metrics over time.

The figures come from pages of `/metrics`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trtllm_truss.observability.status import Change, Event, Phase, State, Status

_PREFIX = "trtllm_truss_"
_BLOCKS = ("nv_trt_llm_kv_cache_block_metrics", "trtllm_truss_kv_cache_blocks")
_QUANTILES = (50, 90, 99)

Buckets = Mapping[float, float]
"""Cumulative counts by upper bound in seconds, ascending."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Figures at one moment.

    Attributes:
        at_s: time in seconds of a monotonic clock.
        tokens: generated tokens since the process started.
        first_token: histogram in seconds.
        gap: histogram of seconds between tokens.
        running: requests in the engine.
        waiting: requests in the queue.
        engine_up: the engine responds.
        restarts: number of engine restarts.
        kv_share: share of the KV cache, 0 to 1; None if unknown.
        kv_is_reserved: the share is reserved for running requests; otherwise it is in use.
    """

    at_s: float
    tokens: float
    first_token: Buckets
    gap: Buckets
    running: int
    waiting: int
    engine_up: bool
    restarts: int
    kv_share: float | None
    kv_is_reserved: bool


def parse_scrape(page: str, at_s: float) -> Scrape:
    """Parse a page in Prometheus's text format.

    Missing figures are 0, as are all of an invalid page.
    """
    values: dict[str, float] = {}
    histograms: dict[str, dict[float, float]] = {}
    blocks: dict[str, float] = {}
    for name, labels, value in _samples(page):
        if name in _BLOCKS:
            kind = labels.get("kv_cache_block_type", "")
            blocks[kind] = blocks.get(kind, 0.0) + value
        elif name.startswith(_PREFIX) and "le" in labels:
            histograms.setdefault(name, {})[float(labels["le"])] = value
        elif name.startswith(_PREFIX):
            values[name.removeprefix(_PREFIX)] = value
    kv_share, kv_is_reserved = _kv_share(blocks, values)
    return Scrape(
        at_s=at_s,
        tokens=values.get("generation_tokens_total", 0.0),
        first_token=histograms.get(f"{_PREFIX}time_to_first_token_seconds_bucket", {}),
        gap=histograms.get(f"{_PREFIX}inter_token_latency_seconds_bucket", {}),
        running=int(values.get("requests_running", 0)),
        waiting=int(values.get("requests_waiting", 0)),
        engine_up=values.get("engine_up") == 1,
        restarts=int(values.get("engine_restarts_total", 0)),
        kv_share=kv_share,
        kv_is_reserved=kv_is_reserved,
    )


def _samples(page: str) -> list[tuple[str, Mapping[str, str], float]]:
    from trtllm_truss.observability.exposition import (
        parse_metrics,  # 33 ms, which no start should wait for
    )

    try:
        families = parse_metrics(page)
    except ValueError:
        return []
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if math.isfinite(sample.value)
    ]


def percentiles_ms(before: Buckets, after: Buckets) -> dict[str, float] | None:
    """Estimate percentiles of the values observed between two scrapes.

    Interpolates within a bucket, as Prometheus does.

    Returns:
        Milliseconds by `p50`, `p90` and `p99`; None without an observation.
    """
    bounds = list(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    return {f"p{rank}": round(1000 * _quantile(bounds, counts, rank / 100), 1)
            for rank in _QUANTILES}  # fmt: skip


def _quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float:
    """Return the value below which a share of the observations lies; cumulative counts."""
    wanted = share * counts[-1]
    edges = pairwise(zip([0.0, *bounds], [0.0, *counts], strict=True))
    for (low, below), (high, upto) in edges:
        if upto >= wanted and upto > below:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (upto - below)
    return bounds[-1]


def _kv_share(
    blocks: Mapping[str, float], values: Mapping[str, float]
) -> tuple[float | None, bool]:
    """Return the engine's own figure, or the share that admission has reserved."""
    if blocks.get("max"):
        return min(1.0, blocks.get("used", 0.0) / blocks["max"]), False
    if capacity := values.get("kv_cache_tokens"):
        return min(1.0, values.get("kv_cache_reserved_tokens", 0.0) / capacity), True
    return None, False


_REQUEST_FIELDS = (
    *("protocol", "status", "reason", "prompt_tokens", "generation_tokens"),
    *("queue_ms", "ttft_ms", "total_ms", "tokens_per_s", "engine_request_id"),
)
_PROBE = "Handled request: "
_REQUESTS_KEPT = 12
_WINDOW_S = 60.0
"""Percentiles cover the last minute."""

_RATE_S = 4.0
"""Tokens per second are averaged over this time."""


class Pulse:
    """Collects log records from one thread and metrics from another; thread-safe and bounded.

    From the log it keeps only this project's numbers and names, never a caller's or a model's text.

    Args:
        status: returns the server's status; None if the server does not report it.
        clock: seconds, monotonic.
        time_s: seconds since the epoch.
    """

    def __init__(
        self,
        status: Callable[[], Status | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._status = status
        self._clock = clock
        self._time_s = time_s
        self._lock = threading.Lock()
        self._last_line = ""
        self._requests: deque[dict[str, Any]] = deque(maxlen=_REQUESTS_KEPT)
        self._scrapes: deque[Scrape] = deque()
        self._ready_since_s: float | None = None
        self._answers = True
        self._engine_up = True
        self._stopping = False

    def on_record(self, record: Mapping[str, Any]) -> None:
        """Receive a record of the server's log."""
        message = str(record.get("message", ""))
        with self._lock:
            if "engine_request_id" in record:
                fields = {name: record[name] for name in _REQUEST_FIELDS if name in record}
                self._requests.appendleft({"time": _time_of_day(self._time_s()), **fields})
            if self._ready_since_s is None and not message.startswith(_PROBE):
                self._last_line = message

    def ready(self) -> None:
        """Record that the server responds."""
        self._ready_since_s = self._clock()

    def stopping(self) -> None:
        """Record that the server drains its requests and exits; also for signal handlers."""
        self._stopping = True

    @property
    def wants_metrics(self) -> bool:
        """True if the server serves requests; it serves none during its start."""
        return self._ready_since_s is not None

    def on_metrics(self, page: str | None) -> None:
        """Receive a page of `/metrics`; None if the server did not respond."""
        with self._lock:
            self._answers = page is not None
            if page is None:
                return
            scrape = parse_scrape(page, self._clock())
            self._engine_up = scrape.engine_up
            self._scrapes.append(scrape)
            while self._scrapes[0].at_s < scrape.at_s - _WINDOW_S:
                self._scrapes.popleft()

    def snapshot(self) -> dict[str, Any]:
        """Return the page's data as JSON."""
        with self._lock:
            since_s = self._ready_since_s
            status = self._status()
            told = status or Status()
            return {
                "state": self._state(status),
                "up_s": None if since_s is None else round(self._clock() - since_s),
                "phases": [_shown_phase(phase) for phase in told.phases],
                "last_line": "" if since_s is not None else self._last_line,
                "events": [
                    {"time": _time_of_day(event.at_s), "text": text}
                    for event in reversed(told.events)
                    if (text := _event_text(event)) is not None
                ],
                "requests": list(self._requests),
                **self._figures(),
            }

    def _state(self, status: Status | None) -> str:
        if self._stopping:
            return "stopping"
        if self._ready_since_s is None:
            return "starting"
        if not self._answers:
            return "unreachable"
        is_up = self._engine_up if status is None else status.state is State.READY
        return "ready" if is_up else "restarting"

    def _figures(self) -> dict[str, Any]:
        if not self._scrapes:
            return {}
        first, last = self._scrapes[0], self._scrapes[-1]
        recent = next(each for each in self._scrapes if each.at_s >= last.at_s - _RATE_S)
        elapsed_s = last.at_s - recent.at_s
        rate = (last.tokens - recent.tokens) / elapsed_s if elapsed_s > 0 else None
        return {
            "tokens_per_s": None if rate is None else round(max(0.0, rate), 1),
            "first_token_ms": percentiles_ms(first.first_token, last.first_token),
            "gap_ms": percentiles_ms(first.gap, last.gap),
            "running": last.running,
            "waiting": last.waiting,
            "restarts": last.restarts,
            "kv_share": None if last.kv_share is None else round(last.kv_share, 4),
            "kv_is_reserved": last.kv_is_reserved,
        }


def _shown_phase(phase: Phase) -> dict[str, Any]:
    return {
        "number": phase.number,
        "count": phase.count,
        "name": phase.name,
        "detail": "" if phase.detail.startswith("/") else phase.detail,  # no paths
        "took_s": None if phase.took_s is None else round(phase.took_s, 1),
    }


def _event_text(event: Event) -> str | None:
    """Return the page's line, without the reason, which may quote the engine's log."""
    return {
        Change.EXITED: "the engine exited",
        Change.RESTART: f"restart {event.restart} of {event.restart_limit}",
        Change.RESTARTED: "the engine answers again",
    }.get(event.change)


def _time_of_day(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))
