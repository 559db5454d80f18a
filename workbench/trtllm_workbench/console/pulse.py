"""The vital signs of one server: phases of its start, the log of requests, figures over time."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trtllm_workbench.console.scrape import Scrape, parse_scrape, percentiles_ms

_PHASE = re.compile(r"\[(\d+)/(\d+)\] (.+?)(?: …|: (.*) \(([\d.]+) s\))$")
_RESTART = re.compile(r"restart (\d+) of (\d+)$")
_REQUEST_FIELDS = (
    *("protocol", "status", "reason", "prompt_tokens", "generation_tokens"),
    *("queue_ms", "ttft_ms", "total_ms", "tokens_per_s", "engine_request_id"),
)
_PROBE = "Handled request: "
_REQUESTS_KEPT = 12
_EVENTS_KEPT = 6
_WINDOW_S = 60.0
"""Percentiles are those of the last minute."""

_RATE_S = 4.0
"""Tokens per second are a mean over this time."""


class Pulse:
    """Collects log records from one thread and metrics from another; thread-safe and bounded.

    Of the log it keeps numbers and names of this project's, never a text of a caller or a model.

    Args:
        clock: seconds, monotonic.
        time_of_day: `HH:MM:SS` of this moment.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self._clock = clock
        self._time_of_day = time_of_day
        self._lock = threading.Lock()
        self._phases: dict[int, dict[str, Any]] = {}
        self._last_line = ""
        self._requests: deque[dict[str, Any]] = deque(maxlen=_REQUESTS_KEPT)
        self._events: deque[dict[str, str]] = deque(maxlen=_EVENTS_KEPT)
        self._scrapes: deque[Scrape] = deque()
        self._ready_since_s: float | None = None
        self._answers = True
        self._engine_up = True
        self._stopping = False

    def on_record(self, record: Mapping[str, Any]) -> None:
        """Take a record of the server's log."""
        message = str(record.get("message", ""))
        with self._lock:
            if "engine_request_id" in record and message.startswith("request "):
                fields = {name: record[name] for name in _REQUEST_FIELDS if name in record}
                self._requests.appendleft({"time": self._time_of_day(), **fields})
            elif found := _PHASE.match(message):
                self._on_phase(*found.groups())
            elif message.startswith("engine exited: "):
                self._on_event("the engine exited", engine_up=False)
            elif found := _RESTART.match(message):
                self._on_event(f"restart {found[1]} of {found[2]}", engine_up=False)
            elif message == "engine restarted":
                self._on_event("the engine answers again", engine_up=True)
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
            return {
                "state": self._state(),
                "up_s": None if since_s is None else round(self._clock() - since_s),
                "phases": [self._phases[number] for number in sorted(self._phases)],
                "last_line": "" if since_s is not None else self._last_line,
                "events": list(self._events),
                "requests": list(self._requests),
                **self._figures(),
            }

    def _state(self) -> str:
        if self._stopping:
            return "stopping"
        if self._ready_since_s is None:
            return "starting"
        if not self._answers:
            return "unreachable"
        return "ready" if self._engine_up else "restarting"

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

    def _on_phase(
        self, number: str, count: str, name: str, detail: str | None, took_s: str | None
    ) -> None:
        self._phases[int(number)] = {
            "number": int(number),
            "count": int(count),
            "name": name,
            "detail": "" if detail is None or detail.startswith("/") else detail,  # no paths
            "took_s": None if took_s is None else float(took_s),
        }

    def _on_event(self, text: str, *, engine_up: bool) -> None:
        self._engine_up = engine_up
        self._events.appendleft({"time": self._time_of_day(), "text": text})
