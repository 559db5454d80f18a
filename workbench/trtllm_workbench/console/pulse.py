"""The vital signs of one server: phases of its start, the log of requests, figures over time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trtllm_truss.status import Change, Event, Phase, State, Status
from trtllm_workbench.console.scrape import Scrape, parse_scrape, percentiles_ms

_REQUEST_FIELDS = (
    *("protocol", "status", "reason", "prompt_tokens", "generation_tokens"),
    *("queue_ms", "ttft_ms", "total_ms", "tokens_per_s", "engine_request_id"),
)
_PROBE = "Handled request: "
_REQUESTS_KEPT = 12
_WINDOW_S = 60.0
"""Percentiles are those of the last minute."""

_RATE_S = 4.0
"""Tokens per second are a mean over this time."""


class Pulse:
    """Collects log records from one thread and metrics from another; thread-safe and bounded.

    Of the log it keeps numbers and names of this project's, never a text of a caller or a model.

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
        """Take a record of the server's log."""
        message = str(record.get("message", ""))
        with self._lock:
            if "engine_request_id" in record:
                fields = {name: record[name] for name in _REQUEST_FIELDS if name in record}
                self._requests.appendleft({"time": _time_of_day(self._time_s()), **fields})
            if self._ready_since_s is None and not message.startswith(_PROBE):
                self._last_line = message

    def ready(self) -> None:
        """Take note that the server answers."""
        self._ready_since_s = self._clock()

    def stopping(self) -> None:
        """Take note that the server drains its requests and ends; for signal handlers too."""
        self._stopping = True

    @property
    def wants_metrics(self) -> bool:
        """True if the server answers requests; it answers none during its start."""
        return self._ready_since_s is not None

    def on_metrics(self, page: str | None) -> None:
        """Take a page of `/metrics`; None if the server did not answer."""
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
        """Return what the page shows, as JSON."""
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
    """Return the page's line; it leaves out the reason, which may quote the engine's log."""
    return {
        Change.EXITED: "the engine exited",
        Change.RESTART: f"restart {event.restart} of {event.restart_limit}",
        Change.RESTARTED: "the engine answers again",
    }.get(event.change)


def _time_of_day(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))
