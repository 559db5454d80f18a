"""Puts a server's end into words: its exit status, and its most telling line of log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

# Triton begins a line with its severity, E for error and F for fatal, and puts text into quotes.
_TRITON_ERROR = re.compile(r"^[EF]\d{4} ")
_TRITON_HEADER = re.compile(r"^[EWIF]\d{4} [\d:.]+ \d+ (\S+:\d+\] )?")
_OTHER_ERROR = re.compile(r"\berror\b|\bfail(ed|ure)?\b|assert|exception|abort|cannot", re.I)
# Said by every server without a GPU, by every server that ends, or in other words before.
_NOISE = re.compile(
    r"CudaDriverHelper|DCGM|NVML|failed to stop server|error: creating server", re.I
)
_LINE_LIMIT = 500
_PORT_TAKEN = re.compile(r"already in use|failed to start \S+ service", re.I)


def telling_line(lines: Sequence[str]) -> str | None:
    """Gives the last error of Triton's own, or else of anyone's, or else simply the last line."""
    spoken = [line.strip() for line in lines if line.strip() and not _NOISE.search(line)]
    for candidates in (
        [line for line in spoken if _TRITON_ERROR.match(line)],
        [line for line in spoken if _OTHER_ERROR.search(line)],
        spoken,
    ):
        if candidates:
            text = _TRITON_HEADER.sub("", candidates[-1]).partition("\\n")[0]
            return text.strip('" ')[:_LINE_LIMIT]
    return None


def is_port_conflict(lines: Sequence[str]) -> bool:
    """Tells whether the server ended because a port was taken after it had been chosen."""
    return any(_PORT_TAKEN.search(line) for line in lines)


def describe_exit(returncode: int) -> str:
    """Puts a keeper's exit status into words: a negative one is the keeper's own death."""
    if returncode < 0:
        return f"was lost: its keeper was killed by {signal.Signals(-returncode).name}"
    if returncode - 128 in set(signal.Signals):
        return f"was killed by {signal.Signals(returncode - 128).name}"
    return f"exited with code {returncode}"
