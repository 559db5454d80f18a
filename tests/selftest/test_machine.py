"""The checks of the machine, including missing parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.machine.describe import CompatibilityMode, Gpus, Machine, inspect_machine
from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.selftest.engine_checks import machine_checks
from trtllm_workbench.selftest.served_model import CheckVerdict, run_check

GIB = 1 << 30
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, 70 * GIB, (9, 0), "575.57.08")


@pytest.fixture(scope="module")
def here() -> Machine:
    """A container with two GPUs."""
    machine = inspect_machine()
    return replace(
        machine,
        gpus=Gpus((H100, H100), H100.driver_version, "NVML"),
        runtime=TensorRtLlm("1.0.0", Path("/usr/bin/python3"), None, "/usr/lib", installed=True),
        cuda=replace(
            machine.cuda,
            version="12.9.1",
            driver_version=H100.driver_version,
            mode=CompatibilityMode.NATIVE,
        ),
        limits=replace(machine.limits, shm_free_bytes=4 * GIB, stack_bytes=None, open_files=65536),
    )


def verdict(machine: Machine, ranks: int, name: str) -> tuple[CheckVerdict, str]:
    check = dict(machine_checks(machine, ranks, Path()))[name]
    result = run_check("", "machine", name, check)
    return result.verdict, result.detail


def test_everything_is_there(here: Machine) -> None:
    names = [name for name, _ in machine_checks(here, 2, Path()) if name != "spawn"]
    assert {verdict(here, 2, name)[0] for name in names} == {CheckVerdict.PASSED}
    assert verdict(here, 2, "GPUs")[1].startswith("2 × NVIDIA H100 80GB HBM3, 75.2 GB free")


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("Triton", {"triton": None, "triton_problem": "is not installed here"}, "not installed"),
        ("MPI", {"mpirun": None}, "2 ranks need mpirun, which is not installed"),
        ("GPUs", {"gpus": Gpus((H100,), "575.57.08", "NVML")}, "2 ranks need 2 GPUs; 1 are"),
        ("GPUs", {"gpus": Gpus((), "575.57.08", "/proc")}, "575.57.08 shows no GPU"),
    ],
)
def test_what_is_missing_is_named(
    here: Machine, name: str, change: dict[str, object], part: str
) -> None:
    found, detail = verdict(replace(here, **change), 2, name)
    assert found is CheckVerdict.FAILED
    assert part in detail


@pytest.mark.parametrize(
    ("name", "limits", "part"),
    [
        (
            "/dev/shm",
            {"shm_free_bytes": 64 << 20},
            "64 MiB are free; 2048 MiB are needed for 2 ranks",
        ),
        ("/dev/shm", {"shm_free_bytes": None}, "does not exist"),
        ("limits", {"open_files": 256}, "open files 256 (--ulimit nofile=65536)"),
        ("limits", {"stack_bytes": 1 << 20}, "stack 1 MiB (--ulimit stack=67108864)"),
    ],
)
def test_low_limits_are_named(
    here: Machine, name: str, limits: dict[str, int | None], part: str
) -> None:
    low = replace(here, limits=replace(here.limits, **limits))
    found, detail = verdict(low, 2, name)
    assert found is CheckVerdict.FAILED
    assert part in detail


def test_an_old_driver_is_named(here: Machine) -> None:
    old = replace(here, cuda=replace(here.cuda, mode=CompatibilityMode.UNSUPPORTED))
    found, detail = verdict(old, 1, "CUDA")
    assert found is CheckVerdict.FAILED
    assert "update the driver" in detail


def test_a_machine_without_a_gpu_needs_neither_gpu_nor_mpi(here: Machine) -> None:
    laptop = replace(
        here,
        gpus=Gpus(),
        mpirun=None,
        runtime=TensorRtLlm(),
        limits=replace(here.limits, shm_free_bytes=64 << 20),
    )
    assert verdict(laptop, 1, "GPUs") == (CheckVerdict.SKIPPED, "no GPU and no NVIDIA driver")
    assert verdict(laptop, 1, "MPI")[0] is CheckVerdict.SKIPPED
    assert verdict(laptop, 1, "TensorRT-LLM")[0] is CheckVerdict.SKIPPED
    assert verdict(laptop, 1, "/dev/shm")[0] is CheckVerdict.PASSED
