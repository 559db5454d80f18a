"""GPUs as NVML reports them, with a fake of its Python module, or ``nvidia-smi``, with a script."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.machine.describe import Gpus, find_gpus

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"]


class FakeNvml(ModuleType):
    """Three H100s; `fails` names the function that raises."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails: str = "") -> None:
        super().__init__("pynvml")
        self.open = 0
        self._fails = fails

    def _maybe_fail(self, name: str) -> None:
        if name == self._fails:
            raise self.NVMLError(name)

    def nvmlInit(self) -> None:
        self._maybe_fail("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"575.57.08"

    def nvmlDeviceGetCount(self) -> int:
        self._maybe_fail("nvmlDeviceGetCount")
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return UUIDS[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"NVIDIA H100 80GB HBM3 #{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=85_520_809_984, free=85_000_000_000, used=1)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0


SMI = """#!/bin/sh
(echo "$*"; env) > "$(dirname "$0")/asked"
echo "GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559, 81038, 9.0, 535.104.05"
echo "GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559, 500, 9.0, 535.104.05"
"""
OPEN_MODULE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
CLOSED_MODULE = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


def visible(devices: str | None = None) -> Gpus:
    return find_gpus({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})


def test_every_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = visible()
    assert found.devices[0] == Gpu(
        "NVIDIA H100 80GB HBM3 #0", 85_520_809_984, 85_000_000_000, (9, 0), "575.57.08"
    )
    assert (len(found.devices), found.driver_version, found.found_by) == (3, "575.57.08", "NVML")
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("devices", "numbers"),
    [("1", [1]), ("2, 0", [2, 0]), ("GPU-bbbb", [1]), ("1,7,0", [1]), ("", []), ("-1", [])],
)
def test_cuda_visible_devices_selects(
    monkeypatch: pytest.MonkeyPatch, devices: str, numbers: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = visible(devices)
    assert [int(gpu.name[-1]) for gpu in found.devices] == numbers
    assert found.driver_version == "575.57.08"


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_gpus_without_a_driver(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    nvml = FakeNvml(fails)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert visible().devices == ()
    assert nvml.open == 0


def test_nvidia_smi_replaces_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb",
        "HF_TOKEN": "a secret",
    }
    (gpu,) = find_gpus(environ).devices
    assert gpu == Gpu(
        "NVIDIA H100 80GB HBM3", 81_559 << 20, 500 << 20, (9, 0), driver_version="535.104.05"
    )
    asked = (tmp_path / "asked").read_text()
    assert "--format=csv,noheader,nounits" in asked
    assert "a secret" not in asked
    program.write_text("#!/bin/sh\necho Failed to initialize NVML; exit 9\n")
    assert find_gpus(environ, tmp_path) == Gpus()


@pytest.mark.parametrize(
    ("text", "driver"), [(OPEN_MODULE, "580.95.05"), (CLOSED_MODULE, "535.104.05"), ("", None)]
)
def test_the_driver_of_the_kernel_is_read(tmp_path: Path, text: str, driver: str | None) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = find_gpus({"PATH": ""}, tmp_path)
    assert (found.devices, found.driver_version) == ((), driver)
