"""Resource usage of processes from /proc: CPU time, memory, threads, files."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.processes import process_guard
from trtllm_truss.processes.process_guard import name_of

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_EVERY_S = 0.1
_STATM_BYTES = 256


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one or several processes.

    Attributes:
        cpu_s: CPU time since the start, in user and kernel mode.
        rss_bytes: resident memory; shared pages count once per process.
        threads: number of threads.
        fds: number of open files.
    """

    cpu_s: float = 0.0
    rss_bytes: int = 0
    threads: int = 0
    fds: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.cpu_s + other.cpu_s,
            self.rss_bytes + other.rss_bytes,
            self.threads + other.threads,
            self.fds + other.fds,
        )


def usage_by_role(root: int) -> dict[str, Usage]:
    """Return the usage of a process and its descendants by role."""
    found: dict[str, Usage] = {}
    for (role, _), usage in usage_by_process(root).items():
        found[role] = found.get(role, Usage()) + usage
    return found


def usage_by_process(root: int) -> dict[tuple[str, int], Usage]:
    """Return the usage of a process and each of its descendants, by role and process id."""
    found: dict[tuple[str, int], Usage] = {}
    for pid in sorted({root, *descendants(root)}):
        with contextlib.suppress(OSError):
            found[_role(pid), pid] = _usage(pid)
    return found


def total(usages: Mapping[str, Usage]) -> Usage:
    return sum(usages.values(), Usage())


def truss_server(root: int) -> int:
    """Return the process id of Truss's own server below a process.

    Raises:
        RuntimeError: the server is gone.
    """
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if _role(pid) == "truss":
                return pid
    raise RuntimeError("Truss's server is gone")


def descendants(root: int) -> dict[int, str]:
    """Return the names of the living descendants of a process, by process id."""
    return {pid: name_of(pid) for pid in process_guard.descendants(root)}


class PeakMemory:
    """Samples the resident memory of a process and its descendants during the block.

    The files stay open: a sample competes with the measured server for its cores.

    Args:
        root: the process.
        with_descendants: include descendants.

    Attributes:
        rss_bytes: peak of the sum.
    """

    def __init__(self, root: int, *, with_descendants: bool = True) -> None:
        self.rss_bytes = 0
        self._pids = {root, *(descendants(root) if with_descendants else ())}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.ExitStack() as files:
            statms = []
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    statms.append(files.enter_context(_statm(pid).open("rb", buffering=0)))
            while True:
                resident = 0
                for statm in statms:
                    with contextlib.suppress(OSError):
                        resident += _resident_bytes(os.pread(statm.fileno(), _STATM_BYTES, 0))
                self.rss_bytes = max(self.rss_bytes, resident)
                if self._done.wait(_SAMPLE_EVERY_S):
                    return


def _role(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    program = Path(arguments[0]).name
    if program.startswith("python"):
        if any(
            argument.endswith(("process_guard.py", "folder_guard.py")) for argument in arguments
        ):
            return "process guard"
        if "main.py" in arguments or "trtllm_truss.cli.main" in arguments:
            return "truss"
        return "serve" if "serve" in arguments else "worker"
    return "triton" if program == "tritonserver" else program


def _usage(pid: int) -> Usage:
    fields = _stat(pid)
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        rss_bytes=_rss_bytes(pid),
        threads=int(fields[17]),
        fds=len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - names alone, much cheaper
    )


def _rss_bytes(pid: int) -> int:
    return _resident_bytes(_statm(pid).read_bytes())


def _statm(pid: int) -> Path:
    return Path(f"/proc/{pid}/statm")


def _resident_bytes(statm: bytes) -> int:
    return int(statm.split()[1]) * _PAGE_BYTES


def _stat(pid: int) -> list[str]:
    """Return the fields of proc(5) stat after the name: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
