"""Describe this machine, its limits included, and warn about settings that harm a server.

Limits are shared memory, rlimits, CPUs and memory of the processes here. NVIDIA's entrypoint, which
Truss replaces, prints the same warnings.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.gpus import CompatibilityMode, Cuda, Gpus, find_cuda, find_gpus
from trtllm_truss.machine.runtime import (
    ROOT,
    TensorRtLlm,
    TritonInstallation,
    find_installation,
    find_mpirun,
    find_runtime,
    read_text,
    under,
)

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps POSIX shared memory
_GROUPS = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups writes a number this large for no limit."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
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


def read_limits(root: Path = ROOT) -> MachineLimits:
    """Read the limits of this process, which its children inherit."""
    shm_total, shm_free = _shared_memory(root)
    memory, free = _memory(root)
    processes = [_soft(resource.RLIMIT_NPROC), _group_number(root, "pids.max", "pids/pids.max")]
    return MachineLimits(
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


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of an engine.

    Attributes:
        python: of this process.
        runtime: TensorRT-LLM.
        triton: the server; None if none was found.
        triton_problem: why none was found; empty if one was.
        mpirun: starts several ranks; None if none was found.
        gpus: GPUs and driver.
        cuda: toolkit and compatibility mode.
        limits: of processes here.
    """

    python: Path
    runtime: TensorRtLlm
    triton: TritonInstallation | None
    triton_problem: str
    mpirun: Path | None
    gpus: Gpus
    cuda: Cuda
    limits: MachineLimits


def inspect_machine(
    environ: Mapping[str, str] | None = None, image: str | None = None, root: Path = ROOT
) -> Machine:
    """Describe this machine.

    Args:
        environ: of the server to start; of this process by default.
        image: `base_image.image` of config.yaml, the last resort for the runtime's version.
        root: stands for ``/``.
    """
    environ = os.environ if environ is None else environ
    problem = ""
    try:
        triton = find_installation(environ)
    except TritonError as error:
        triton, problem = None, error.message
    try:
        mpirun = find_mpirun(environ)
    except TritonError:
        mpirun = None
    gpus = find_gpus(environ, root)
    return Machine(
        python=Path(sys.executable),
        runtime=find_runtime(environ, image, root),
        triton=triton,
        triton_problem=problem,
        mpirun=mpirun,
        gpus=gpus,
        cuda=find_cuda(gpus.driver_version, environ, root),
        limits=read_limits(root),
    )


def container_sentences(python: Path, runtime: TensorRtLlm, cuda: Cuda) -> list[str]:
    """State Python, driver, CUDA and compatibility mode, one sentence each."""
    return [
        f"Python: {python} ({platform.python_version()}); {_runtime_sentence(runtime)}",
        f"NVIDIA driver: {cuda.driver_version or 'none'}",
        f"CUDA: {cuda.version or 'none'}",
        f"CUDA compatibility: {_mode_sentence(cuda)}",
    ]


def _runtime_sentence(runtime: TensorRtLlm) -> str:
    if runtime.version is None:
        where = f", only {runtime.library}" if runtime.library else ""
        return f"no TensorRT-LLM found{where}"
    if not runtime.installed:
        return f"no TensorRT-LLM found; {runtime.version} by {runtime.found_by}"
    where = f"for {runtime.python}" if runtime.python else f"by {runtime.found_by}, for no Python"
    return f"TensorRT-LLM {runtime.version} {where}"


def _mode_sentence(cuda: Cuda) -> str:
    own = f"{cuda.compat_folder}, driver {cuda.compat_driver_version}"
    if cuda.mode is CompatibilityMode.FORWARD:
        return f"{cuda.mode.value} ({own})"
    if cuda.mode is CompatibilityMode.MINOR:
        return f"{cuda.mode.value} (the image's driver in {own}, does not run here)"
    return str(cuda.mode.value)


_SHM_BYTES = 1 << 30
"""Of NVIDIA's launch instructions; Docker's default is 64 MiB."""


def check_machine(cuda: Cuda, limits: MachineLimits, ranks: int) -> Iterator[Diagnostic]:
    """Yield a warning for a missing driver and for too little shared memory.

    Args:
        cuda: from `find_cuda`.
        limits: from `read_limits`.
        ranks: of the engine, one GPU each; 0 for a CPU engine.
    """
    if ranks and cuda.version is not None and cuda.mode is CompatibilityMode.NO_DRIVER:
        yield warning(
            "no_driver",
            f"CUDA {cuda.version} is here, but no NVIDIA driver is visible; start the container "
            "with GPUs (Docker: --gpus all).",
        )
    size = limits.shm_total_bytes
    if ranks > 1 and size is not None and size < _SHM_BYTES:
        yield warning(
            "shared_memory_small",
            f"the container has {size >> 20} MiB of shared memory, through which the engine's "
            f"{ranks} ranks exchange data; "
            "give the container 1 GiB or more (Docker: --shm-size=1g).",
        )
