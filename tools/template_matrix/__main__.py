"""Print the matrix of the templates in folders: `python -m tools.template_matrix FOLDER…`.

Exits with 1 if a cell lost a text, failed, or was refused although `transformers` renders it whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from string import ascii_letters

from jinja2 import TemplateError
from tools.template_matrix.conversations import CONVERSATIONS
from tools.template_matrix.matrix import Cell, Row, count, rows_of

_SIGNS = {"whole": ".", "lost": "L", "refused": "4", "failed": "5"}


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--details", action="store_true", help="print what was found of each")
    options = parser.parse_args()
    rows = [row for folder in options.folders for row in rows_of(folder)]
    for number, conversation in enumerate(CONVERSATIONS):
        _line(f"{ascii_letters[number]}  {conversation.name}")
    _line(f"\n{'=':>3} as transformers; . whole; L lost; 4 refused; 5 failed")
    for row in rows:
        _print_row(row, with_details=options.details)
    counted = count(rows)
    _line(", ".join(f"{number} {name}" for name, number in counted.items()))
    wrong = ("lost", "failed", "refused but rendered by the reference")
    return int(any(counted[name] for name in wrong))


def _print_row(row: Row, *, with_details: bool) -> None:
    try:
        cells = row.cells
    except TemplateError as error:
        _line(f"{row.name}: {error}")
        return
    signs = "".join(
        "=" if cell.equals and cell.status == "whole" else _SIGNS[cell.status]
        for cell in cells.values()
    )
    shape = row.templates.shape
    _line(f"{signs}  {row.name}  ({shape.renders} renders, {shape.took_s * 1000:.0f} ms)")
    if with_details:
        for answer in shape.answers:
            if answer.answer != "shown":
                _line(f"    {answer.question}: {answer.answer}")
    for wrong, group in groupby(sorted(cells, key=_fault(cells)), _fault(cells)):
        if wrong[0] != "whole":
            _line(f"    {', '.join(group)}: {' '.join(wrong)}")


def _fault(cells: Mapping[str, Cell]) -> Callable[[str], tuple[str, ...]]:
    def fault(name: str) -> tuple[str, ...]:
        cell = cells[name]
        return (cell.status, cell.detail, f"(transformers: {cell.reference})")

    return fault


if __name__ == "__main__":
    sys.exit(main())
