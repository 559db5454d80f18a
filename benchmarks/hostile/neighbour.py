"""A well-behaved client next to hostile ones."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.paths import ROOT
from benchmarks.servers.target import Target


class Neighbour:
    """Start and end times of the neighbour's answers.

    Attributes:
        failed: number of responses other than 200.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.failed = 0
        self._process = process
        self._answers: list[tuple[float, float]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def waits_ms(self, since: float, until: float) -> list[float]:
        """Wait for the last answer of a period; return the durations of all that overlap it."""
        while self._process.poll() is None and not (self._answers and self._answers[-1][1] > until):
            time.sleep(0.01)
        return [
            1000 * (end - begin) for begin, end in self._answers if end > since and begin < until
        ]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            begin, end, status = line.split()
            self._answers.append((float(begin), float(end)))
            self.failed += status != "200"


@contextmanager
def neighbour_of(target: Target) -> Iterator[Neighbour]:
    """Run `benchmarks.load.neighbour` during the block."""
    command = [sys.executable, "-m", "benchmarks.load.neighbour", str(target.port), target.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Neighbour(process)
        finally:
            process.kill()
