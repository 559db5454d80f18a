"""The GPUs of this machine, by NVIDIA's management library (NVML)."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

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


def visible_gpus(visible_devices: str | None = None) -> tuple[Gpu, ...]:
    """List the GPUs that a child process may use, in NVML's order.

    Return none without NVML's Python module, driver or GPU. Creates no CUDA context, so it uses no
    memory of the GPUs.

    Args:
        visible_devices: the value of ``CUDA_VISIBLE_DEVICES``, which NVML itself ignores: numbers
            or UUIDs, comma-separated. None means all.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("cannot use NVML: %s", error)
        return ()
    try:
        return _selected(nvml, visible_devices)
    except nvml.NVMLError as error:
        logger.warning("cannot query GPUs: %s", error)
        return ()
    finally:
        nvml.nvmlShutdown()


def _selected(nvml: Any, visible_devices: str | None) -> tuple[Gpu, ...]:
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if visible_devices is None:
        return tuple(_gpu(nvml, handle, driver) for handle in handles)
    chosen: list[Gpu] = []
    for wanted in (item.strip() for item in visible_devices.split(",")):
        handle = next(
            (h for i, h in enumerate(handles) if wanted == str(i) or _has_uuid(nvml, h, wanted)),
            None,
        )
        if handle is None:  # CUDA also ignores everything after the first wrong entry
            break
        chosen.append(_gpu(nvml, handle, driver))
    return tuple(chosen)


def _has_uuid(nvml: Any, handle: Any, wanted: str) -> bool:
    return wanted.startswith("GPU-") and _text(nvml.nvmlDeviceGetUUID(handle)).startswith(wanted)


def _gpu(nvml: Any, handle: Any, driver: str) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=(int(major), int(minor)),
        driver_version=driver,
    )


def _text(value: str | bytes) -> str:
    # Older releases of the module return bytes.
    return value.decode() if isinstance(value, bytes) else value
