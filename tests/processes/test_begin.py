"""When the user's command began."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from trtllm_truss.processes.begin import BEGIN_VARIABLE, begin_s

PROGRAM = "import os; from trtllm_truss.processes.begin import begin_s; print(begin_s(os.environ))"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def begin_of_child(variables: dict[str, str]) -> float:
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        check=True,
        capture_output=True,
        timeout=240,
    ).stdout
    return float(printed)


def test_a_process_begins_before_its_imports() -> None:
    before = time.monotonic()
    began = begin_of_child({BEGIN_VARIABLE: ""})
    assert before - 2 * TICK_S <= began <= time.monotonic()
    assert begin_s({}) < before


def test_a_child_counts_from_the_command_that_started_it() -> None:
    mine = begin_s({})
    assert begin_of_child({BEGIN_VARIABLE: str(mine)}) == mine
