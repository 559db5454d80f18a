"""The GPUs and the NVIDIA driver of this machine.

Sources are NVML, ``nvidia-smi`` without NVML's Python module, and ``/proc`` for the driver alone.
"""

from __future__ import annotations

import csv
import importlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.machine.runtime import ROOT, read_text, under
from trtllm_truss.settings.child_environment import child_environment

logger = logging.getLogger(__name__)

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_PROC_VERSION = "/proc/driver/nvidia/version"
_PROC_DRIVER = re.compile(r"^NVRM version:.*?Kernel Module.*?\s(\d+(?:\.\d+)+)\s", re.M)
_QUERY = "uuid,name,memory.total,memory.free,compute_cap,driver_version"
_SMI_LIMIT_S = 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a child process may use.

    Attributes:
        devices: in NVML's order, or that of ``CUDA_VISIBLE_DEVICES``.
        driver_version: of the kernel module, such as ``575.57.08``; None without a driver.
        found_by: ``NVML``, ``nvidia-smi``, ``/proc/driver/nvidia/version`` or ``nothing``.
    """

    devices: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    found_by: str = "nothing"


def find_gpus(environ: Mapping[str, str] | None = None, root: Path = ROOT) -> Gpus:
    """List GPUs and driver; create no CUDA context, so use no memory of the GPUs.

    Args:
        environ: of the child process; ``CUDA_VISIBLE_DEVICES``, which NVML ignores, selects GPUs by
            numbers or UUIDs.
        root: stands for ``/``.
    """
    environ = os.environ if environ is None else environ
    visible = environ.get(VISIBLE_DEVICES)
    found = _by_nvml() if root == ROOT else None
    source = "NVML"
    if found is None:
        found, source = _by_nvidia_smi(environ), "nvidia-smi"
    if found is not None:
        driver = found[0][1].driver_version if found else _proc_driver(root)
        return Gpus(_selected(found, visible), driver, source)
    driver = _proc_driver(root)
    return Gpus((), driver, _PROC_VERSION) if driver else Gpus()


def _by_nvml() -> list[tuple[str, Gpu]] | None:
    """Return UUIDs and GPUs; None without NVML's Python module, driver or GPU."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("cannot use NVML: %s", error)
        return None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [(_text(nvml.nvmlDeviceGetUUID(h)), _gpu(nvml, h, driver)) for h in handles]
    except nvml.NVMLError as error:
        logger.warning("cannot query GPUs: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()


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


def _by_nvidia_smi(environ: Mapping[str, str]) -> list[tuple[str, Gpu]] | None:
    """Return UUIDs and GPUs; None if the program is missing or fails."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    if program is None:
        return None
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(
            command,
            env=child_environment(environ),
            capture_output=True,
            text=True,
            timeout=_SMI_LIMIT_S,
            check=True,
        )
        rows = csv.reader(ended.stdout.splitlines(), skipinitialspace=True)
        return [_row(row) for row in rows if row]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("cannot query GPUs: %s", error)
        return None


def _row(values: Sequence[str]) -> tuple[str, Gpu]:
    uuid, name, total, free, capability, driver = values
    major, _, minor = capability.partition(".")
    memory = (int(total) * _MIB, int(free) * _MIB)
    return uuid, Gpu(name, *memory, (int(major), int(minor)), driver)


def _proc_driver(root: Path) -> str | None:
    found = _PROC_DRIVER.search(read_text(under(root, _PROC_VERSION)))
    return found[1] if found else None


def _selected(found: Sequence[tuple[str, Gpu]], visible: str | None) -> tuple[Gpu, ...]:
    if visible is None:
        return tuple(gpu for _, gpu in found)
    chosen: list[Gpu] = []
    for wanted in (item.strip() for item in visible.split(",")):
        gpu = next(
            (
                gpu
                for number, (uuid, gpu) in enumerate(found)
                if wanted == str(number) or (wanted.startswith("GPU-") and uuid.startswith(wanted))
            ),
            None,
        )
        if gpu is None:  # CUDA also ignores everything after the first wrong entry
            break
        chosen.append(gpu)
    return tuple(chosen)


def _text(value: str | bytes) -> str:
    # Older releases of the module return bytes.
    return value.decode() if isinstance(value, bytes) else value
