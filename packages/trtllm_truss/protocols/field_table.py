"""Fields of a protocol as rows of its page in docs/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtllm_truss.protocols.field_types import Unsupported

_BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_LARGEST_SHOWN = 1 << 16
"""Bounds beyond it are those of the number's type and tell nobody anything."""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(columns)
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def served_rows(model: type[BaseModel], names: Iterable[str]) -> list[list[str]]:
    """Name, default and meaning of fields that are served."""
    return [
        [f"`{name}`", _default(model.model_fields[name]), _meaning(model.model_fields[name])]
        for name in names
    ]


def unsupported_rows(fields: Mapping[str, Unsupported]) -> list[list[str]]:
    """Name, values that pass, and reason of fields that are refused."""
    return [
        [f"`{name}`", ", ".join(f"`{json.dumps(value)}`" for value in field.neutral), field.reason]
        for name, field in sorted(fields.items())
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None or field.default is None:
        return ""
    return f"`{json.dumps(field.default)}`"


def _meaning(field: FieldInfo) -> str:
    bounds = [
        text.format(getattr(limit, name))
        for limit in field.metadata
        for name, text in _BOUNDS.items()
        if abs(getattr(limit, name, _LARGEST_SHOWN + 1)) <= _LARGEST_SHOWN
    ]
    return f"{field.description}" + (f" ({', '.join(bounds)})" if bounds else "")
