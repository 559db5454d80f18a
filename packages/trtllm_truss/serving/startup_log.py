"""Log the phases of a start and their durations."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from trtllm_truss.observability.status import Phase, ServiceStatus

logger = logging.getLogger(__name__)


class StartupLog:
    """Reports the phases of a start: a log line for each, and the status.

    Args:
        count: of phases.
        begin_s: since when `elapsed_s` counts; None for now.
    """

    def __init__(self, count: int, status: ServiceStatus, begin_s: float | None = None) -> None:
        self._count = count
        self._status = status
        self._numbers = itertools.count(1)
        self._begin_s = time.monotonic() if begin_s is None else begin_s

    def phase(self, name: str) -> AbstractContextManager[list[str]]:
        """Number the next phase; it starts when it is entered, and may overlap with others.

        Returns:
            A context whose value is a list of details for the phase's last line.
        """
        return self._phase(Phase(next(self._numbers), self._count, name))

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[list[str]]:
        label = f"[{phase.number}/{phase.count}] {phase.name}"
        phase = replace(phase, at_s=time.time())
        self._status.phase(phase)
        logger.info("%s …", label)
        started = time.monotonic()
        details: list[str] = []
        yield details
        took_s = time.monotonic() - started
        detail = ", ".join(details) or "done"
        self._status.phase(replace(phase, detail=detail, took_s=round(took_s, 3)))
        logger.info("%s: %s (%.1f s)", label, detail, took_s)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s
