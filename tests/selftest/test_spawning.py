"""The check that MPI spawns workers, with real MPI."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import open_mpi
from tests.support.waiting import PATIENCE_S

from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest import spawning
from trtllm_workbench.selftest.served_model import CheckVerdict, Failed, Skipped, run_check
from trtllm_workbench.selftest.spawning import spawn_workers


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


def test_mpi_spawns_workers(tmp_path: Path) -> None:
    found = spawn_workers(TensorRtLlm(), 2, tmp_path)
    assert re.fullmatch(
        r"spawned 2 workers in \d+\.\d s \(Open MPI v\d[\w.]+, mpi4py 4\.1\.2\)", found.detail
    )
    assert processes_in(tmp_path) == []


def test_a_spawn_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory serves one job only, and the worker is another: it cannot reach its parent."""
    monkeypatch.setenv("OMPI_MCA_btl", "^tcp")
    installed = TensorRtLlm("1.2.1", Path(sys.executable), installed=True)
    with pytest.raises(Failed, match=r"^cannot spawn: 1 worker did not start within 120 s"):
        spawn_workers(installed, 1, tmp_path, limit_s=4.0)
    assert processes_in(tmp_path) == []


def test_a_daemon_that_is_not_on_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI of a virtual environment that is not active."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("prte") or shutil.which("orted"):
        pytest.skip("the system has an Open MPI of its own")
    with pytest.raises(Skipped, match="put the folder of Open MPI's prte or orted on PATH; only"):
        spawn_workers(TensorRtLlm(), 1, tmp_path, limit_s=4.0)
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "verdict", "part"),
    [
        ("exit 3", CheckVerdict.FAILED, "cannot spawn: 1 worker did not start at all"),
        (
            "echo 'spawned by a log'; exit 3",
            CheckVerdict.FAILED,
            "cannot spawn: 1 worker did not start at all",
        ),
        (
            f'exec {sys.executable} -S -E "$@"',
            CheckVerdict.SKIPPED,
            "mpi4py is not installed",
        ),
    ],
)
def test_a_python_that_cannot_is_named(
    program: str, verdict: CheckVerdict, part: str, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    runtime = TensorRtLlm("1.2.1", python, installed=True)
    result = run_check("", "machine", "spawn", lambda: spawn_workers(runtime, 1, tmp_path))
    assert result.verdict is verdict
    assert result.detail.startswith(part)


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
    assert spawned["verdict"] == "passed", spawned
