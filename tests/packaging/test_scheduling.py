"""A test worker that dies fails one test, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

CONFTEST = """
from tests.support.scheduling import Scheduler, not_run

def pytest_xdist_make_scheduler(config, log):
    return Scheduler(config, log, lambda nodeid: nodeid.partition("::")[0])

def pytest_terminal_summary(terminalreporter, config):
    for line in not_run(config, terminalreporter):
        terminalreporter.line(line)
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_{name}(number):
    if number == {dies_at}:
        os._exit(3)
"""


def ran(folder: Path, restarts: int, **dies_at: int) -> tuple[int, list[str]]:
    (folder / "conftest.py").write_text(CONFTEST)
    for name, number in dies_at.items():
        text = TESTS.replace("{name}", name).replace("{dies_at}", str(number))
        (folder / f"test_{name}.py").write_text(text)
    command = [
        *(sys.executable, "-m", "pytest", str(folder), "-q", "--rootdir", str(folder)),
        *("-n", "2", "--max-worker-restart", str(restarts), "-c", str(ROOT / "pyproject.toml")),
        *("-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
    ]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    return done.returncode, done.stdout.splitlines()


def test_all_others_run_once(tmp_path: Path) -> None:
    """Two workers die in their first test, and a third one in the last test of all."""
    status, lines = ran(tmp_path, 8, a=0, b=0, c=5)
    failed = [line for line in lines if line.startswith("FAILED")]
    assert status == 1, lines
    assert sorted(line.split("::")[1].split()[0] for line in failed) == [
        "test_a[0]",
        "test_b[0]",
        "test_c[5]",
    ]
    assert lines[-1].startswith("3 failed, 15 passed in "), lines
    assert not any("were not run" in line for line in lines)


def test_what_was_not_run_is_counted(tmp_path: Path) -> None:
    status, lines = ran(tmp_path, 0, a=1, b=1, c=1)
    assert status != 0
    assert any(" of 18 tests were not run, test_" in line for line in lines), lines
