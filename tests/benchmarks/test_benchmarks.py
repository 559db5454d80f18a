"""The command line of the benchmarks, with one tiny case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from benchmarks.servers.configuration import changed, in_own_server, write_config
from benchmarks.servers.usage import descendants
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

from trtllm_workbench.cli.truss_server import own_server


@pytest.mark.thorough
@pytest.mark.server
def test_quick_run_writes_json_and_leaves_nothing(tmp_path: Path) -> None:
    before = descendants(os.getpid()).keys()
    command = [sys.executable, "-m", "benchmarks", "zero-cost", "--quick", "--streams", "2"]
    running = subprocess.run(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert running.returncode == 0, running.stdout + running.stderr
    content = json.loads((tmp_path / "zero-cost.json").read_text())
    assert [row["path"] for row in content["rows"]] == [
        "bare gRPC loop",
        "Triton HTTP (ensemble)",
        "trtllm-truss",
    ]
    for row in (content["rows"][0], content["rows"][2]):
        assert row["failed"]["high"] == 0
        assert row["tok_s"]["low"] > 0
    assert "× bare gRPC loop" in running.stdout
    assert descendants(os.getpid()).keys() <= before


def test_unknown_cases_are_named() -> None:
    running = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert running.returncode == 2
    assert "unknown case nonsense; choose from zero-cost," in running.stderr


def test_a_configuration_is_changed_beside_itself(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml")
    own, traced = (
        in_own_server(config),
        changed(config, "on", runtime={"enable_tracing_data": True}),
    )
    assert [own_server(ROOT, file) for file in (config, own, traced)] == [False, True, False]
    runtime = yaml.safe_load(config.read_text())["runtime"]
    assert yaml.safe_load(traced.read_text())["runtime"] == {**runtime, "enable_tracing_data": True}
