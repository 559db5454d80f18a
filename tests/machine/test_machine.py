"""The machine that runs the tests, and an image as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from tests.machine.images import lay_out

from trtllm_truss.machine.describe import (
    CompatibilityMode,
    container_sentences,
    inspect_machine,
    read_limits,
)
from trtllm_truss.machine.runtime import mpi_version


def test_this_machine_is_described() -> None:
    machine = inspect_machine()
    assert machine.triton is not None
    assert (machine.triton.backends / "python").is_dir()
    assert machine.mpirun is not None
    version = mpi_version(machine.mpirun)
    assert version is not None
    assert version.split(".")[0].isdigit()
    assert 0 < machine.limits.cpus <= (os.cpu_count() or 1)


def test_an_image_is_described(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    machine = inspect_machine(tree.environ, None, tree.root)
    assert machine.triton is not None
    assert machine.triton.version == "2.61.0"
    assert (machine.triton.backends / "tensorrtllm").is_dir()
    assert machine.cuda.mode is CompatibilityMode.NATIVE
    python, *rest = container_sentences(Path("/usr/bin/python3"), machine.runtime, machine.cuda)
    assert "TensorRT-LLM 1.2.1 for" in python
    assert rest == [
        "NVIDIA driver: 590.44.01",
        "CUDA: 13.1.0.036",
        "CUDA compatibility: native",
    ]


def test_limits_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    meminfo = "MemTotal:       1000000 kB\nMemAvailable:    900000 kB\nHugePages_Total:       0\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    groups = tmp_path / "sys/fs/cgroup"
    second = {
        "memory.max": "512000000",
        "memory.current": "22000000",
        "memory.stat": "anon 12000000\ninactive_file 10000000",
    }
    first = {
        "memory/memory.limit_in_bytes": "512000000",
        "memory/memory.usage_in_bytes": "12000000",
    }
    for files in (second, first):
        for name, text in files.items():
            (groups / name).parent.mkdir(parents=True, exist_ok=True)
            (groups / name).write_text(f"{text}\n")
        found = read_limits(tmp_path)
        assert found.shm_total_bytes
        assert found.memory_bytes == 512_000_000
        assert found.memory_free_bytes == 500_000_000
        for name in files:
            (groups / name).unlink()
    found = read_limits(tmp_path)
    assert found.memory_bytes == 1_024_000_000
    (groups / "memory").mkdir(exist_ok=True)
    (groups / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    assert read_limits(tmp_path).memory_free_bytes == 921_600_000
