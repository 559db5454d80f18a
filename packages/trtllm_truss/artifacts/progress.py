"""Progress of a download as lines in the log; containers have no terminal for bars."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)

_EVERY_S = 5.0


class Progress:
    """Counts bytes and logs progress every few seconds. Thread-safe.

    As a context manager it also logs the start and the speed of a download.

    Args:
        here_bytes: number of bytes left by an earlier attempt.
    """

    def __init__(self, name: str, total_bytes: int, here_bytes: int = 0) -> None:
        self._name = name
        self._total = total_bytes
        self._here = here_bytes
        self._fetched = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)

    def add(self, count: int) -> None:
        """Count received bytes; negative for discarded ones."""
        with self._lock:
            self._fetched += count

    def found(self, count: int) -> None:
        """Count bytes that another process has received."""
        with self._lock:
            self._here += count

    def __enter__(self) -> Progress:
        resumed = f", {_size(self._here)} of them here already" if self._here else ""
        logger.info("%s: fetching %s%s", self._name, _size(self._total), resumed)
        self._start = time.monotonic()
        self._reporter.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._reporter.join()
        if error is None:
            spent_s = time.monotonic() - self._start
            logger.info("%s: fetched in %.1f s (%s)", self._name, spent_s, self._rate(spent_s))

    def _report(self) -> None:
        while not self._ended.wait(_EVERY_S):
            spent_s = time.monotonic() - self._start
            with self._lock:
                fetched, done = self._fetched, self._here + self._fetched
            left = f"{spent_s * (self._total - done) / fetched:.0f} s" if fetched > 0 else "unknown"
            logger.info(
                "%s: %s of %s, %s, time left: %s",
                *(self._name, _size(done), _size(self._total), self._rate(spent_s), left),
            )

    def _rate(self, spent_s: float) -> str:
        return f"{_size(self._fetched / max(spent_s, 0.001))}/s"


def _size(count: float) -> str:
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} bytes"
