"""Limits of the processes here: shared memory, rlimits, CPUs and memory."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.machine.runtime import ROOT, read_text, under

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps POSIX shared memory
_GROUPS = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups writes a number this large for no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a child process; None is "unlimited", or unknown for memory.

    Attributes:
        shm_total_bytes: size of ``/dev/shm``; None if it does not exist.
        shm_free_bytes: free space in it.
        memlock_bytes: memory that a process may lock (``ulimit -l``).
        stack_bytes: stack of a process's main thread (``ulimit -s``).
        open_files: descriptors of a process, up to which it may raise its own limit.
        processes: processes and threads of the container or the user, whichever is lower.
        cpus: CPUs that this process may run on.
        cpu_quota: CPUs' worth of time that the container may use.
        memory_bytes: memory of the container, or of the machine.
        memory_free_bytes: memory that new processes can use.
    """

    shm_total_bytes: int | None
    shm_free_bytes: int | None
    memlock_bytes: int | None
    stack_bytes: int | None
    open_files: int | None
    processes: int | None
    cpus: int
    cpu_quota: float | None
    memory_bytes: int | None
    memory_free_bytes: int | None


def read_limits(root: Path = ROOT) -> Limits:
    """Read the limits of this process, which its children inherit."""
    shm_total, shm_free = _shared_memory(root)
    memory, free = _memory(root)
    processes = [_soft(resource.RLIMIT_NPROC), _group_number(root, "pids.max", "pids/pids.max")]
    return Limits(
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        memlock_bytes=_soft(resource.RLIMIT_MEMLOCK),
        stack_bytes=_soft(resource.RLIMIT_STACK),
        open_files=_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        processes=min((number for number in processes if number is not None), default=None),
        cpus=usable_cpus(),
        cpu_quota=_cpu_quota(root),
        memory_bytes=memory,
        memory_free_bytes=free,
    )


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _soft(limit: int) -> int | None:
    return _finite(resource.getrlimit(limit)[0])


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _shared_memory(root: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(under(root, _SHARED_MEMORY))
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return total and free bytes: the lower of the machine's and the container's."""
    lines = read_text(under(root, "/proc/meminfo")).splitlines()
    machine = {
        name: int(rest.split()[0]) << 10 for name, _, rest in (x.partition(":") for x in lines)
    }
    total, free = machine.get("MemTotal"), machine.get("MemAvailable")
    limit = _group_number(root, "memory.max", "memory/memory.limit_in_bytes")
    used = _group_number(root, "memory.current", "memory/memory.usage_in_bytes")
    if limit is None or (total is not None and limit >= total):
        return total, free
    left = None if used is None else max(0, limit - used + _reclaimable(root))
    return limit, min((size for size in (free, left) if size is not None), default=None)


def _reclaimable(root: Path) -> int:
    """Return bytes of cached files that the container gives up when it needs memory."""
    for name in ("memory.stat", "memory/memory.stat"):
        found = re.search(r"(?m)^inactive_file (\d+)$", read_text(under(root, f"{_GROUPS}/{name}")))
        if found:
            return int(found[1])
    return 0


def _cpu_quota(root: Path) -> float | None:
    quota, _, period = read_text(under(root, f"{_GROUPS}/cpu.max")).strip().partition(" ")
    if not quota:
        quota = read_text(under(root, f"{_GROUPS}/cpu/cpu.cfs_quota_us")).strip()
        period = read_text(under(root, f"{_GROUPS}/cpu/cpu.cfs_period_us")).strip()
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def _group_number(root: Path, second: str, first: str) -> int | None:
    """Return a number of the container's control group, of version 2 or 1."""
    for name in (second, first):
        text = read_text(under(root, f"{_GROUPS}/{name}")).strip()
        if text.isdigit():
            return int(text) if int(text) < _UNLIMITED_BYTES else None
    return None
