"""Warnings of NVIDIA's entrypoint, which Truss replaces."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.machine.cuda import CompatibilityMode, Cuda
from trtllm_truss.machine.limits import Limits

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
