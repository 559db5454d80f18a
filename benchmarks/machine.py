"""The machine and the versions behind the figures."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path

_PACKAGES = ("nvidia-pytriton", "tritonclient", "tokenizers", "uvloop", "truss", "openvino-genai")


def describe_machine() -> dict[str, str]:
    """Return cores, CPU, memory, versions and the date."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    versions = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0))),
        "cpu": _cpu_model(),
        "memory": f"{memory_gib:.0f} GiB",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
