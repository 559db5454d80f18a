"""GPUs as NVML reports them, with a fake of its Python module."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from trtllm_truss.engines.accelerators import ACCELERATORS, parse_accelerator
from trtllm_truss.engines.gpus import Gpu, visible_gpus

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


def test_every_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, *others = visible_gpus()
    assert first == Gpu(
        "NVIDIA H100 80GB HBM3 #0", 85_520_809_984, 85_000_000_000, (9, 0), "575.57.08"
    )
    assert len(others) == 2
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [("1", [1]), ("2, 0", [2, 0]), ("GPU-bbbb", [1]), ("1,7,0", [1]), ("", []), ("-1", [])],
)
def test_cuda_visible_devices_selects(
    monkeypatch: pytest.MonkeyPatch, visible: str, numbers: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert [int(gpu.name[-1]) for gpu in visible_gpus(visible)] == numbers


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_gpus_without_a_driver(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    nvml = FakeNvml(fails)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert visible_gpus() == ()
    assert nvml.open == 0


def test_no_gpus_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpus() == ()


@pytest.mark.parametrize(
    ("spec", "name", "count"), [("H100", "H100", 1), ("H100:8", "H100", 8), (" L4:2 ", "L4", 2)]
)
def test_accelerators_are_read(spec: str, name: str, count: int) -> None:
    request = parse_accelerator(spec)
    assert request is not None
    assert (request.name, request.count) == (name, count)
    assert request.accelerator is ACCELERATORS[name]


@pytest.mark.parametrize("spec", ["", ":2", "H100:0", "H100:x", "H100:2:3", "H 100"])
def test_accelerators_that_truss_refuses(spec: str) -> None:
    assert parse_accelerator(spec) is None


@pytest.mark.parametrize(
    ("name", "gpu", "same"),
    [
        ("L4", "NVIDIA L4", True),
        ("L4", "NVIDIA L40S", False),
        ("A10G", "NVIDIA A10G", True),
        ("A100_40GB", "NVIDIA A100-SXM4-40GB", True),
        ("B300", "NVIDIA GB300", False),
        ("RTX_PRO_6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
    ],
)
def test_accelerators_are_recognised_by_name(name: str, gpu: str, same: bool) -> None:
    assert ACCELERATORS[name].matches(Gpu(gpu, 1, 1, (9, 0), "1")) is same
