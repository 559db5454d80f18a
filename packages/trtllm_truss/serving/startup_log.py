"""Start-up told as it happens: one log line per phase, with its time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Phases:
    """Numbers and times the phases of one start."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._begun = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Logs a phase when it begins and when it is done.

        Yields:
            A list; what is put into it is said in the closing line.
        """
        self._done += 1
        label = f"[{self._done}/{self._count}] {name}"
        logger.info("%s …", label)
        begun = time.monotonic()
        findings: list[str] = []
        yield findings
        logger.info(
            "%s: %s (%.1f s)", label, ", ".join(findings) or "done", time.monotonic() - begun
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first phase could begin."""
        return time.monotonic() - self._begun
