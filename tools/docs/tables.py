"""Markdown tables from Pydantic fields and other rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtllm_truss.engines.kinds import KINDS
from trtllm_truss.protocols.fields import ROW, Unsupported

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_CELL_CHARACTERS = 300
_MAX_SHOWN_BOUND = 1 << 30
"""Larger bounds are those of the number's type and explain nothing."""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(columns)
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def in_cells(names: Iterable[str]) -> Iterator[str]:
    """Join names into cells of at most `_CELL_CHARACTERS`, if the rows' other cells agree."""
    cell = ""
    for name in names:
        if cell and len(cell) + len(name) > _CELL_CHARACTERS:
            yield cell
            cell = ""
        cell += f", {name}" if cell else name
    yield cell


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with its generated tables replaced.

    Args:
        page: has a ``<!-- table: NAME -->`` before and an ``<!-- end -->`` after each table.
        tables: tables by their names.

    Raises:
        ValueError: the page does not contain a table's marks.
    """
    for name, text in tables.items():
        mark = f"<!-- table: {name} -->\n"
        start = page.index(mark) + len(mark)
        page = page[:start] + text + page[page.index("<!-- end -->", start) :]
    return page


def field_rows(
    model: type[BaseModel], names: Iterable[str], *, empty: bool = False
) -> list[list[str]]:
    """Return a row of name, default and meaning for each field of `names`.

    `empty` shows defaults of None and empty dicts.
    """
    fields = {name: model.model_fields[name] for name in names}
    return [
        [f"`{name}`", _default(field, empty), _meaning(field)] for name, field in fields.items()
    ]


def unsupported_rows(fields: Mapping[str, Unsupported]) -> list[list[str]]:
    """Return a row of name, accepted values and reason for each unsupported field."""
    return [
        [f"`{name}`", ", ".join(f"`{json.dumps(value)}`" for value in field.neutral), field.reason]
        for name, field in sorted(fields.items())
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _default(field: FieldInfo, empty: bool) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "`{}`" if empty else ""
    return f"`{json.dumps(field.default)}`" if empty or field.default is not None else ""


def _meaning(field: FieldInfo) -> str:
    bounds = [
        f"{word} {getattr(limit, name)}"
        for limit in field.metadata
        for name, word in _BOUNDS.items()
        if abs(getattr(limit, name, _MAX_SHOWN_BOUND + 1)) <= _MAX_SHOWN_BOUND
    ]
    bounds += [f"`{json.dumps(choice)}`" for choice in _choices(field.annotation)]
    meaning = [field.description] if field.description else []
    extra = field.json_schema_extra
    row = extra.get(ROW) if isinstance(extra, dict) else None
    if others := [kind.answering for kind in KINDS if row in kind.refused_fields]:
        meaning.append(f"Not with {' or '.join(others)}.")
    return " ".join([*meaning, *([f"({', '.join(bounds)})"] if bounds else [])])


def _choices(annotation: object) -> list[object]:
    """Return the values of a literal or optional literal type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]
