"""Pydantic fields and other rows as tables in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtllm_truss.protocols.fields import Unsupported

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_LARGEST_SHOWN = 1 << 30
"""Bounds beyond it are those of the number's type; they explain nothing."""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(columns)
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def field_rows(
    model: type[BaseModel], names: Iterable[str], *, empty: bool = False
) -> list[list[str]]:
    """Name, default and meaning of a model's fields.

    Args:
        model: whose fields.
        names: of the fields, in the order of the rows.
        empty: whether a default of None or an empty dict is shown.
    """
    fields = {name: model.model_fields[name] for name in names}
    return [
        [f"`{name}`", _default(field, empty), _meaning(field)] for name, field in fields.items()
    ]


def unsupported_rows(fields: Mapping[str, Unsupported]) -> list[list[str]]:
    """Name, values that pass, and reason of fields that are refused."""
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
        if abs(getattr(limit, name, _LARGEST_SHOWN + 1)) <= _LARGEST_SHOWN
    ]
    bounds += [f"`{json.dumps(choice)}`" for choice in _choices(field.annotation)]
    meaning = [field.description] if field.description else []
    return " ".join([*meaning, *([f"({', '.join(bounds)})"] if bounds else [])])


def _choices(annotation: object) -> list[object]:
    """The values of a literal type, or of one that may also be absent."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]
