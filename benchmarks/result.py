"""The result of a case: rows for a table, curves for plots, sentences with the ratios."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sample import Spread

_PACKAGES = ("nvidia-pytriton", "tritonclient", "tokenizers", "uvloop", "truss", "openvino-genai")

Cell = str | float | Spread


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: key of the rows' cells.
        title: title with the unit.
        digits: decimal places.
    """

    key: str
    title: str
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot with a curve of medians per path."""

    name: str
    title: str
    x: str
    y: str
    curves: dict[str, list[tuple[float, float]]]
    log_x: bool = True
    log_y: bool = False


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
    """Return the CPU's name; virtual machines omit the generation, which the numbers reveal."""
    pairs = re.findall(r"^([\w ]+?)\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    found = dict(reversed(pairs))
    if "model name" not in found:
        return platform.machine()
    numbers = [f"{key.split()[-1]} {found[key]}" for key in ("cpu family", "model") if key in found]
    return f"{found['model name']} ({', '.join(numbers)})"


@dataclass(slots=True)
class CaseResult:
    """The result of one case.

    Attributes:
        name: name of the case and its file.
        title: the heading.
        text: the method.
        columns: columns of the table.
        rows: cells by column key; printed when added.
        findings: sentences with ratios and caveats.
        charts: plots.
        faults: sentences about violated expectations.
        machine: the machine and versions.
    """

    name: str
    title: str
    text: str
    columns: list[Column]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=describe_machine)

    def begin(self) -> CaseResult:
        """Print the head of the table."""
        print(f"\n{self.title}", flush=True)
        print(" ".join(f"{c.title:>{_width(c)}}" for c in self.columns), flush=True)
        return self

    def add(self, **cells: Cell) -> None:
        """Add a row and print it."""
        self.rows.append(cells)
        shown = (f"{shown_cell(cells.get(c.key, ''), c):>{_width(c)}}" for c in self.columns)
        print(" ".join(shown), flush=True)

    def find(self, sentence: str) -> None:
        """Add a finding and print it."""
        self.findings.append(sentence)
        print(f"  {sentence}", flush=True)

    def fault(self, sentence: str) -> None:
        """Add a fault and print it."""
        self.faults.append(sentence)
        print(f"  FAULT: {sentence}", flush=True)

    def write(self, folder: Path, label: str = "") -> Path:
        """Write `NAME.json`, or `NAME@LABEL.json` for a second kind of machine."""
        file = folder / f"{self.name}{label and '@'}{label}.json"
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return file


def read_result(file: Path) -> CaseResult:
    """Read a file of `CaseResult.write`."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    content["columns"] = [Column(**column) for column in content["columns"]]
    content["charts"] = [Chart(**chart) for chart in content["charts"]]
    content["rows"] = [
        {key: Spread(**cell) if isinstance(cell, dict) else cell for key, cell in row.items()}
        for row in content["rows"]
    ]
    return CaseResult(**content)


def shown_cell(cell: Cell, column: Column) -> str:
    """Format a cell: for several rounds, the median and half of the range."""
    if isinstance(cell, Spread):
        spread = cell.high - cell.low
        median = f"{cell.median:,.{column.digits}f}"
        return f"{median} ±{spread / 2:,.{column.digits}f}" if spread else median
    return cell if isinstance(cell, str) else f"{cell:,.{column.digits}f}"


def _width(column: Column) -> int:
    return max(15, len(column.title))
