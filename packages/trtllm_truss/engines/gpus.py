"""A GPU as plain data; `machine.gpus` finds those of this machine."""

from __future__ import annotations

from dataclasses import dataclass

ComputeCapability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as ``nvidia-smi`` prints it, such as ``NVIDIA H100 80GB HBM3``.
        total_bytes: its memory.
        free_bytes: memory that no process uses at this moment.
        compute_capability: major and minor, ``(9, 0)`` for Hopper.
        driver_version: of the machine, such as ``575.57.08``.
    """

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: ComputeCapability
    driver_version: str
