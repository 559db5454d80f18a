"""What a case came to: rows for a table, curves for plots, sentences with the ratios."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.sample import Spread

Cell = str | float | Spread


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: of the rows' cells.
        title: its head, with the unit.
        digits: behind the decimal point.
    """

    key: str
    title: str
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot: a curve of medians for each path."""

    name: str
    title: str
    x: str
    y: str
    curves: dict[str, list[tuple[float, float]]]
    log_x: bool = True
    log_y: bool = False


@dataclass(slots=True)
class CaseResult:
    """One case.

    Attributes:
        name: of the case and of its file.
        title: for readers.
        text: what is measured and how.
        columns: of the table.
        rows: cells by column key; rows are shown as soon as they are added.
        findings: sentences: ratios, and what the figures must be read with.
        charts: plots.
        faults: sentences: what must not be so.
        machine: where it was measured.
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
        """Prints the head of the table."""
        print(f"\n{self.title}", flush=True)
        print(" ".join(f"{c.title:>{_width(c)}}" for c in self.columns), flush=True)
        return self

    def add(self, **cells: Cell) -> None:
        """Adds a row and prints it."""
        self.rows.append(cells)
        shown = (f"{shown_cell(cells.get(c.key, ''), c):>{_width(c)}}" for c in self.columns)
        print(" ".join(shown), flush=True)

    def find(self, sentence: str) -> None:
        """Adds a finding and prints it."""
        self.findings.append(sentence)
        print(f"  {sentence}", flush=True)

    def fault(self, sentence: str) -> None:
        """Adds a fault and prints it."""
        self.faults.append(sentence)
        print(f"  FAULT: {sentence}", flush=True)

    def write(self, folder: Path) -> Path:
        """Writes `NAME.json`."""
        file = folder / f"{self.name}.json"
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return file


def read_result(file: Path) -> CaseResult:
    """The reverse of `CaseResult.write`."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    content["columns"] = [Column(**column) for column in content["columns"]]
    content["charts"] = [Chart(**chart) for chart in content["charts"]]
    content["rows"] = [
        {key: Spread(**cell) if isinstance(cell, dict) else cell for key, cell in row.items()}
        for row in content["rows"]
    ]
    return CaseResult(**content)


def shown_cell(cell: Cell, column: Column) -> str:
    """A cell as text; of several rounds the median, and how far they lie apart."""
    if isinstance(cell, Spread):
        apart = cell.high - cell.low
        median = f"{cell.median:,.{column.digits}f}"
        return f"{median} ±{apart / 2:,.{column.digits}f}" if apart else median
    return cell if isinstance(cell, str) else f"{cell:,.{column.digits}f}"


def _width(column: Column) -> int:
    return max(15, len(column.title))
