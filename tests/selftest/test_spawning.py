"""The check that MPI spawns workers, with real MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_llm_api import open_mpi
from tests.support.waiting import PATIENCE_S

from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest import spawning
from trtllm_workbench.selftest.spawning import Spawned, probe, spawn


@pytest.fixture(autouse=True)
def _mpi_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in open_mpi().items():
        path = name == "PATH"
        monkeypatch.setenv(name, os.pathsep.join([value, os.environ["PATH"]]) if path else value)
    monkeypatch.setattr(spawning, "LIMIT_S", PATIENCE_S)  # that of an idle machine is 20 s


def processes_in(folder: Path) -> list[int]:
    """Return the processes with a folder in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def test_mpi_spawns_and_counts_slots(tmp_path: Path) -> None:
    found = spawn(TensorRtLlm(), 2, tmp_path)
    assert found.outcome == "works"
    assert found.slots is not None
    assert 1 <= found.slots <= (os.cpu_count() or 1)
    assert list(found.cores) == [len(os.sched_getaffinity(0))] * 2
    assert found.mpi4py == "4.1.2"
    assert found.sentence.startswith("spawned 2 workers in ")
    assert f"{found.slots} slots (Open MPI {found.open_mpi}, mpi4py 4.1.2)" in found.sentence
    assert processes_in(tmp_path) == []


def test_a_spawn_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory serves one job only, and the worker is another: it cannot reach its parent."""
    monkeypatch.setenv("OMPI_MCA_btl", "^tcp")
    found = spawn(TensorRtLlm(), 1, tmp_path, limit_s=4.0)
    assert found.outcome == "hangs"
    assert found.sentence.startswith("cannot spawn: 1 worker did not start within 120 s")
    assert processes_in(tmp_path) == []


def test_a_daemon_that_is_not_on_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI of a virtual environment that is not active."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = spawn(TensorRtLlm(), 1, tmp_path, limit_s=4.0)
    if found.has_daemon:
        pytest.skip("the system has an Open MPI of its own")
    assert found.outcome == "hangs"
    assert found.sentence.endswith("put the folder of Open MPI's prte or orted on PATH")
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "outcome", "part"),
    [
        ("exit 3", "fails", "cannot spawn: 1 worker did not start at all"),
        (f'exec {sys.executable} -S -E "$@"', "not run", "mpi4py is not installed"),
    ],
)
def test_a_python_that_cannot_is_named(
    program: str, outcome: str, part: str, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    found = spawn(TensorRtLlm("1.2.1", python, installed=True), 1, tmp_path)
    assert found.outcome == outcome
    assert found.sentence.startswith(part)


def test_lines_of_a_log_are_no_answer(tmp_path: Path) -> None:
    program = 'import sys; print("{\\"a\\": 1}"); print("{not JSON"); sys.exit(int(sys.argv[1]))'
    command = [sys.executable, "-c", program]
    assert probe([*command, "0"], {}, tmp_path, 60).found == {"a": 1}
    assert probe([*command, "3"], {}, tmp_path, 60).found is None


def test_an_unknown_mpi_has_no_version() -> None:
    spawned = Spawned("works", 1, 0.5, slots=8, mpi4py="3.1.5")
    assert spawned.sentence == "spawned 1 worker in 0.5 s; 8 slots (Open MPI unknown, mpi4py 3.1.5)"


def test_the_command_needs_no_extra() -> None:
    """NVIDIA's image has none of these, and must keep what it has instead."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); "
        "from trtllm_workbench.cli.main import main; main(['selftest', '--help'])"
    )
    extras = ("truss", "aiohttp", "fastapi", "h11", "numpy", "openvino_genai", "psutil", "uvicorn")
    ended = subprocess.run(
        [sys.executable, "-c", program, *extras], capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert "--machine" in ended.stdout


def test_machine_checks_the_machine_and_serves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    main(["selftest", "--machine", "--output", str(output)])
    checks = json.loads(output.read_text())["checks"]
    assert {check["step"] for check in checks} == {"machine", "template"}
    (spawned,) = (check for check in checks if check["check"] == "spawn")
    assert spawned["verdict"] == "held", spawned
