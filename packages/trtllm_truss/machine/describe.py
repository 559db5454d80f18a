"""Everything that is known of this machine, in one object, and warnings about it.

NVIDIA's entrypoint, which Truss replaces, prints the same warnings.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.cuda import CompatibilityMode, Cuda, find_cuda
from trtllm_truss.machine.gpus import Gpus, find_gpus
from trtllm_truss.machine.limits import Limits, read_limits
from trtllm_truss.machine.mpi import find_mpirun
from trtllm_truss.machine.runtime import ROOT, Runtime, find_runtime
from trtllm_truss.machine.triton import TritonInstallation, find_installation


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
    runtime: Runtime
    triton: TritonInstallation | None
    triton_problem: str
    mpirun: Path | None
    gpus: Gpus
    cuda: Cuda
    limits: Limits


def describe(
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


def container_sentences(python: Path, runtime: Runtime, cuda: Cuda) -> list[str]:
    """State Python, driver, CUDA and compatibility mode, one sentence each."""
    return [
        f"Python: {python} ({platform.python_version()}); {_runtime_sentence(runtime)}",
        f"NVIDIA driver: {cuda.driver_version or 'none'}",
        f"CUDA: {cuda.version or 'none'}",
        f"CUDA compatibility: {_mode_sentence(cuda)}",
    ]


def _runtime_sentence(runtime: Runtime) -> str:
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


def check_machine(cuda: Cuda, limits: Limits, ranks: int) -> Iterator[Diagnostic]:
    """Yield a warning for a missing driver and for too little shared memory.

    Args:
        cuda: from `find_cuda`.
        limits: from `read_limits`.
        ranks: of the engine, one GPU each; 0 for an engine of the CPU.
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
