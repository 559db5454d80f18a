"""When the command began that the user waits for: it may have started this process late."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

BEGIN_VARIABLE = "TRTLLM_TRUSS_BEGIN"
"""Seconds of `time.monotonic`, which all processes share (CLOCK_MONOTONIC)."""

_START_TICKS = 19
"""Place of `starttime`, in ticks since boot, after the name in proc_pid_stat(5)."""


def begin_s(variables: Mapping[str, str]) -> float:
    """Return the time of `BEGIN_VARIABLE`; without it, when this process began."""
    with suppress(ValueError):
        return float(variables.get(BEGIN_VARIABLE, ""))
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
    ticks = int(after_name.split()[_START_TICKS])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
