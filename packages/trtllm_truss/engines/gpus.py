"""GPU models: memory, compute capability, names at Baseten.

``resources.accelerator`` in config.yaml can name the GPUs. Source of the names: the ``Accelerator``
enum of Truss (``truss/base/truss_config.py``). Source of the memory: NVIDIA's data sheets, in GB of
10⁹ bytes, never more than the driver reports. Source of the compute capability:
https://developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

ComputeCapability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as ``nvidia-smi`` prints it, such as ``NVIDIA H100 80GB HBM3``.
        total_bytes: total memory.
        free_bytes: memory currently unused by any process.
        compute_capability: major and minor, ``(9, 0)`` for Hopper.
        driver_version: driver of the machine, such as ``575.57.08``.
    """

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: ComputeCapability
    driver_version: str


_GIGABYTE = 10**9


_SPEC = re.compile(r"([A-Za-z0-9_]+)(?::([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of GPU.

    Attributes:
        name: as spelled in config.yaml.
        model: the word of NVML's GPU name that identifies it.
        memory_bytes: memory of one GPU.
        compute_capability: major and minor.
    """

    name: str
    model: str
    memory_bytes: int
    compute_capability: ComputeCapability

    def matches(self, gpu: Gpu) -> bool:
        return re.search(rf"\b{self.model}\b", gpu.name, re.IGNORECASE) is not None


def _row(
    name: str, memory_gb: int, capability: ComputeCapability, model: str | None = None
) -> Accelerator:
    return Accelerator(name, model or name, memory_gb * _GIGABYTE, capability)


ACCELERATORS: dict[str, Accelerator] = {
    row.name: row
    for row in (
        _row("T4", 16, (7, 5)),
        _row("V100", 16, (7, 0)),
        _row("A10G", 24, (8, 6)),
        _row("A100", 80, (8, 0)),
        _row("A100_40GB", 40, (8, 0), "A100"),
        _row("L4", 24, (8, 9)),
        _row("L40S", 48, (8, 9)),
        _row("H100", 80, (9, 0)),
        _row("H100_40GB", 40, (9, 0), "H100"),  # half of one GPU, split by MIG
        _row("H200", 141, (9, 0)),
        _row("B200", 180, (10, 0)),
        _row("B300", 288, (10, 3)),
        _row("GB300", 288, (10, 3)),
        _row("RTX_PRO_6000", 96, (12, 0), "RTX PRO 6000"),
    )
}


_OTHER_GPUS: dict[str, ComputeCapability] = {
    **{"A30": (8, 0), "A10": (8, 6), "A40": (8, 6), "RTX A6000": (8, 6)},
    **{"L20": (8, 9), "L40": (8, 9), "RTX 4090": (8, 9)},
    **{"H20": (9, 0), "GH200": (9, 0), "GB200": (10, 0)},
}
"""GPUs outside the table that engines are built on."""


def find_capability(gpu_name: str) -> ComputeCapability | None:
    """Look up a GPU's compute capability by any name: ``A100-SXM-80GB``, ``NVIDIA L4``."""
    words = gpu_name.replace("-", " ")
    rows = {row.model: row.compute_capability for row in ACCELERATORS.values()} | _OTHER_GPUS
    found = [model for model in rows if re.search(rf"\b{model}\b", words, re.IGNORECASE)]
    return rows[max(found, key=len)] if found else None


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A value of ``resources.accelerator``: ``H100`` or ``H100:2``.

    Attributes:
        name: the part before the colon.
        count: number of GPUs.
        accelerator: its row of the table, if any.
    """

    name: str
    count: int
    accelerator: Accelerator | None


def accelerator_of(instance_type: str) -> str | None:
    """Return the GPUs of ``resources.instance_type`` as an accelerator; None for a CPU instance.

    ``L4:4x16`` has one GPU, 4 cores and 16 GiB; ``A100:4x48x576`` and ``H100:4`` have four GPUs.

    Source: docs.baseten.co/deployment/resources, and basetenlabs/baseten-skills,
    references/truss-config.md (0a2fc92).
    """
    name, _, size = instance_type.strip().partition(":")
    numbers = size.split("x")
    if name.upper() == "CPU":
        return None
    return f"{name}:{numbers[0]}" if len(numbers) != 2 and numbers[0] not in ("", "1") else name


def accelerator_text(value: object) -> str | None:
    """Return ``resources.accelerator`` as text; Truss also reads a mapping of its two parts.

    Source: AcceleratorSpec in truss/base/truss_config.py, 0.18.35.
    """
    if isinstance(value, Mapping):
        name, count = value.get("accelerator"), value.get("count", 1)
        return f"{name}:{count}" if isinstance(name, str) and isinstance(count, int) else None
    return value if isinstance(value, str) and value else None


def meant_accelerator(name: str) -> str | None:
    """Return Truss's name closest to another one: ``H100`` for ``h100x2``."""
    plain = re.sub(r"([-_ ]80GB)?(X\d+)?(:.*)?$", "", name.upper().strip())  # A100 has 80 GB
    close = get_close_matches(plain, ACCELERATORS, n=1, cutoff=0.5)
    return close[0] if close else None


def parse_accelerator(spec: str) -> AcceleratorRequest | None:
    """Parse ``resources.accelerator``; None for a value that Truss refuses."""
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        return None
    name = match[1]
    return AcceleratorRequest(name, int(match[2] or 1), ACCELERATORS.get(name))
