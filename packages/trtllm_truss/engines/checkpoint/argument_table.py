"""The arguments of ``tensorrt_llm.LLM`` as data, and the check of a mapping by its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import (
    Release,
    describe_releases,
    holds,
    read_file,
    read_table,
    rows_for,
)
from trtllm_truss.settings.runtime import SECTION
from trtllm_truss.validation import did_you_mean, shown

Kind = Literal["bool", "int", "number", "text", "ints", "texts", "mapping", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of ``tensorrt_llm.LLM``, or one field of an argument that is an object.

    `releases/llm_arguments.toml` explains the columns.
    """

    name: str
    kind: Kind
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    section: str = ""
    nullable: bool = True
    required: bool = False
    warning: str = ""
    refused: str = ""
    since: Release
    until: Release | None = None
    source: str

    @property
    def fields(self) -> tuple[Argument, ...]:
        return SECTIONS[self.section] if self.section else ()


_FILE = "llm_arguments"


def read_arguments(section: str) -> tuple[Argument, ...]:
    """Read the rows of one object; a name has one for each range of releases."""
    return read_table(_FILE, section, Argument)


_KINDS = {"decoding_kinds", "sparse_attention_kinds"}
SECTIONS = {name: read_arguments(name) for name in read_file(_FILE) if name not in {"*", *_KINDS}}


def parse_fields(
    values: Mapping[str, Any], rows: Sequence[Argument], path: str, version: str | None
) -> dict[str, Any]:
    """Check the values of an object by name, type and range.

    Args:
        values: null counts as not set, except for an object that may be null, which it turns off.
        path: of the object below the section, with a dot at its end; empty for the section itself.
        version: TensorRT-LLM's; None for any, in which unknown names pass.

    Raises:
        SettingsError: its ``param`` names the value at fault.
    """
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        known = [row for row in rows if row.name == name]
        if refused := next((row.refused for row in known if row.refused), ""):
            raise argument_error(path + name, f"cannot be set. {refused}")
        here = _rows_here(name, known, rows, path, version) if value is not None or known else ()
        if value is None:
            if any(row.kind == "mapping" and row.nullable for row in here):
                parsed[name] = None
            continue
        row = next((row for row in here if _is_valid(row, value)), None)
        if here and row is None:
            raise argument_error(path + name, f"is {shown(value)}; it must be {_rule(here[-1])}.")
        fields = row.fields if row else ()
        parsed[name] = parse_fields(value, fields, f"{path}{name}.", version) if fields else value
    _check_required(parsed, rows, path, version)
    return parsed


def _rows_here(
    name: str,
    known: Sequence[Argument],
    rows: Sequence[Argument],
    path: str,
    version: str | None,
) -> Sequence[Argument]:
    """Return the rows of a name in a release; none for one that may be newer than the table."""
    if here := rows_for(known, version):
        return here
    if version is None or not (known or holds("knows_arguments", version)):
        return ()
    if known:
        span = replace(known[0], until=known[-1].until)
        raise argument_error(
            path + name,
            f"is an argument of TensorRT-LLM {describe_releases(span)}, not of {version}. "
            "Remove it.",
        )
    close = did_you_mean(name, [row.name for row in rows_for(rows, version) if not row.refused])
    hint = f" Did you mean {close}?" if close else ""
    whose = f"a field of {path.rstrip('.')}" if path else "an argument of LLM(…)"
    raise argument_error(path + name, f"is not {whose} in TensorRT-LLM {version}.{hint}")


def _check_required(
    parsed: Mapping[str, Any], rows: Sequence[Argument], path: str, version: str | None
) -> None:
    for row in rows_for(rows, version) if version is not None else ():
        if row.required and row.name not in parsed:
            raise argument_error(path + row.name, f"is missing; set it to {_rule(row)}.")


def _is_valid(row: Argument, value: Any) -> bool:
    if row.kind == "any":
        return True
    if row.kind == "bool":
        return isinstance(value, bool)
    if row.kind == "mapping":
        return isinstance(value, Mapping)
    if row.kind in ("ints", "texts"):
        fits = _fits if row.kind == "ints" else _is_word
        return isinstance(value, list) and bool(value) and all(fits(row, item) for item in value)
    return _is_word(row, value) if row.kind == "text" else _fits(row, value)


def _is_word(row: Argument, value: Any) -> bool:
    return isinstance(value, str) and (not row.choices or value in row.choices)


def _fits(row: Argument, value: Any) -> bool:
    types = (int, float) if row.kind == "number" else (int,)
    if isinstance(value, bool) or not isinstance(value, types):
        return False
    above = row.minimum is None or value >= row.minimum
    return above and (row.maximum is None or value <= row.maximum)


def _rule(row: Argument) -> str:
    limits = "" if row.minimum is None else f", at least {row.minimum}"
    limits = limits if row.maximum is None else f" from {row.minimum} to {row.maximum}"
    words = f" of {', '.join(row.choices)}" if row.choices else ""
    return {
        "bool": "true or false",
        "int": f"a whole number{limits}",
        "number": f"a number{limits}",
        "text": f"one{words}" if words else "a string",
        "ints": f"a list of whole numbers{limits}",
        "texts": f"a list of some{words}" if words else "a list of strings",
        "mapping": "a mapping",
        "any": "a value",
    }[row.kind]


def argument_error(path: str, problem: str) -> SettingsError:
    name = f"{SECTION}.{path}" if path else SECTION
    return SettingsError(f"config.yaml: model_metadata.runtime.{name} {problem}", param=name)


def schema_of(rows: Sequence[Argument]) -> dict[str, Any]:
    """Return the JSON schema of an object, for all releases."""
    properties: dict[str, Any] = {}
    for row in rows:
        if not row.refused:
            schema = _value_schema(row)
            before = properties.get(row.name)
            wider = before is None or len(schema.get("enum", ())) >= len(before.get("enum", ()))
            properties[row.name] = schema if wider else before
    return {"properties": properties, "type": "object"}


def _value_schema(row: Argument) -> dict[str, Any]:
    limits = {"maximum": row.maximum, "minimum": row.minimum}
    number = {name: limit for name, limit in limits.items() if limit is not None}
    text = {"enum": [*row.choices, None]} if row.choices else {"type": ["string", "null"]}
    word = {"enum": [*row.choices]} if row.choices else {"type": "string"}
    some = {"minItems": 1, "type": ["array", "null"]}
    schemas: dict[Kind, dict[str, Any]] = {
        "bool": {"type": ["boolean", "null"]},
        "int": {**number, "type": ["integer", "null"]},
        "number": {**number, "type": ["number", "null"]},
        "text": text,
        "ints": {"items": {**number, "type": "integer"}, **some},
        "texts": {"items": word, **some},
        "mapping": {**(schema_of(row.fields) if row.fields else {}), "type": ["object", "null"]},
        "any": {},
    }
    return schemas[row.kind]
