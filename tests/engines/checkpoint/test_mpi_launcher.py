"""A checkpoint's server under TensorRT-LLM's launcher, which splits its arguments at blanks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import PROGRAMS

from trtllm_truss.engines.checkpoint.launcher import LlmApiLauncher
from trtllm_truss.errors import TritonError

LAUNCHER = LlmApiLauncher(PROGRAMS / "trtllm-llmapi-launch")


def test_the_server_gets_its_arguments_whole_and_its_end_ends_the_job(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    segment = [sys.executable, "-c", program, str(said), "two  words; and 'quotes'"]
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    with subprocess.Popen(["sleep", "infinity"]) as job:
        (tmp_path / "mpirun").write_text(str(job.pid))
        with subprocess.Popen(
            LAUNCHER.rank(segment, 0, tmp_path),
            env={**environment, "OMPI_COMM_WORLD_RANK": "0"},
        ) as launcher:
            assert job.wait() == -signal.SIGTERM
            launcher.kill()
    assert said.read_text() == "two  words; and 'quotes'"


def test_other_ranks_run_workers_only(tmp_path: Path) -> None:
    assert LAUNCHER.rank(["tritonserver", "--x"], 1, tmp_path) == [str(LAUNCHER.program)]
    assert not [*tmp_path.iterdir()]


def test_a_folder_with_blanks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TritonError, match="set TMPDIR to a folder without blanks"):
        LAUNCHER.rank(["tritonserver"], 0, tmp_path / "a folder")
