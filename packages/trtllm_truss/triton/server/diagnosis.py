"""The cause of a server's exit, from its output and status."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

# Triton starts a line with its severity, E for error and F for fatal, and quotes texts.
_TRITON_ERROR = re.compile(r"^[EF]\d{4} ")


_TRITON_HEADER = re.compile(r"^[EWIF]\d{4} [\d:.]+ \d+ (\S+:\d+\] )?")


_OTHER_ERROR = re.compile(r"\berror\b|\bfail(ed|ure)?\b|assert|exception|abort|cannot", re.I)


# Logged by every server without a GPU or by every server that exits, or repeating an earlier line;
# mpirun's frame around its messages; and its message when it stops listening (mpi.py).
_NOISE = re.compile(
    r"CudaDriverHelper|DCGM|NVML|failed to stop server|error: creating server|pinned system memory"
    r"|unable to create stream for"
    r"|^-{20,}$|^\s*(At:$|<frozen |File \")|^[+|]|(prterun|mpirun) (noticed|detected) that"
    r"|^causing the job to be terminated|^Process name:|^Exit code:|^exited on signal"
    r"|^thus causing the job|^signal \d+ \(|^NOTE: invoking MPI_ABORT|^You may or may not see"
    r"|limit on number of network connections|^WARNING: The accept\(3\)|^should generally never"
    r"|^most common causes|^\* The .* ran out of|^Your .* job will likely hang|^\(e\.g\., more file"
    r"|^eventually timeout|^(Local host|Errno|Probable cause): ",
    re.I,
)


_HARMLESS = re.compile(r"^[IW]\d{4} |\[(INFO|WARNING|DEBUG)\]")


_LINE_LIMIT = 500


_PORT_TAKEN = re.compile(
    r"already in use|failed to start \S+ service|^No sockets were able to be opened"
    r"|PRTE ERROR: Fatal in file \S+/oob_tcp_component\.c",  # mpirun's whole output in some runs
    re.I,
)


_BY_SIGNAL = {
    signal.SIGKILL: "The kernel kills a process when the host runs out of memory; give the "
    "container more.",
    signal.SIGBUS: "A common reason is too little shared memory (/dev/shm); give the container "
    "1 GiB or more for each GPU (Docker: --shm-size).",
}


_ENDED_FROM_OUTSIDE = re.compile(r"\bSignal \(15\) received\b")
"""Printed by Triton at SIGTERM. Not used for exits that this server requested."""


_BY_SIGTERM = (
    "Another program sent SIGTERM to Triton before; `truss push --watch` ends all processes of "
    "the container at each change."
)


def explain_exit(lines: Sequence[str], returncode: int | None = None) -> str:
    """Return the known error in a server's log, or its last error line, as one or two sentences.

    Args:
        lines: the last lines of its output.
        returncode: the process guard's exit status; None while the server still runs.
    """
    from trtllm_truss.triton.server.known_errors import find_known_error

    spoken = [line.strip() for line in lines if line.strip() and not _NOISE.search(line.strip())]
    found = find_known_error([line for line in spoken if not _HARMLESS.search(line)])
    if found is not None:
        sentence, line = found
        return f"{sentence} Its log: {_bare(line)}"
    error_line = last_error_line(lines)
    log = f"Its log: {error_line}" if error_line else "Its log is empty."
    number = None if returncode is None else signal_of(returncode)
    hint = _BY_SIGNAL.get(number) if number is not None else None
    if number is signal.SIGKILL and any(_ENDED_FROM_OUTSIDE.search(line) for line in lines):
        hint = _BY_SIGTERM
    return f"{hint} {log}" if hint else log


def last_error_line(lines: Sequence[str]) -> str | None:
    """Return Triton's last error line, or any last error line, or the last line.

    None for an empty log.
    """
    spoken = [line.strip() for line in lines if line.strip() and not _NOISE.search(line.strip())]
    for candidates in (
        [line for line in spoken if _TRITON_ERROR.match(line)],
        [line for line in spoken if _OTHER_ERROR.search(line)],
        spoken,
    ):
        if candidates:
            return _bare(candidates[-1])
    return None


def is_port_conflict(lines: Sequence[str]) -> bool:
    """Return True if the server exited because a port was taken after it had been chosen."""
    return any(_PORT_TAKEN.search(line) for line in lines)


def describe_exit(returncode: int) -> str:
    """Describe a process guard's exit status; a negative status is the guard's own."""
    if returncode < 0:
        return f"was lost: its process guard was killed by {signal.Signals(-returncode).name}"
    number = signal_of(returncode)
    return f"was killed by {number.name}" if number else f"exited with code {returncode}"


def signal_of(returncode: int) -> signal.Signals | None:
    """Return the signal that killed the server, from a shell-style exit status."""
    number = returncode - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def _bare(line: str) -> str:
    return _TRITON_HEADER.sub("", line).partition("\\n")[0].strip('" ')[:_LINE_LIMIT]
