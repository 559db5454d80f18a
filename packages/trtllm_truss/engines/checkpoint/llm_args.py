"""`runtime` for a checkpoint: `llm_args`, and the arguments that its other keys become.

Arguments are checked by name, type and range before anything starts: TensorRT-LLM refuses an
unknown one itself, but only in the container.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import Release, describe_releases, holds, read_table, rows_for
from trtllm_truss.settings.runtime import SECTION, ParameterValue
from trtllm_truss.validation import did_you_mean, shown

Kind = Literal["bool", "int", "number", "text", "ints", "mapping", "any"]


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
    refused: str = ""
    since: Release
    until: Release | None = None
    source: str

    @property
    def fields(self) -> tuple[Argument, ...]:
        return _FIELDS[self.section] if self.section else ()


LLM_ARGUMENTS = (
    *read_table("llm_arguments", "arguments", Argument),
    *read_table("llm_arguments", "engine_arguments", Argument),
)
_DECODING_TYPES = read_table("llm_arguments", "decoding_types", Argument)
DECODING_TYPES = tuple(row.name for row in _DECODING_TYPES)
"""Kinds of speculative decoding with the PyTorch backend."""

_FIELDS = {
    row.section: read_table("llm_arguments", row.section, Argument)
    for row in LLM_ARGUMENTS
    if row.section
}


_CONVERSIONS: dict[str, tuple[str, Callable[[ParameterValue], Any]]] = {
    "": ("", lambda value: value),
    "list": ("a list", lambda value: list(value) if isinstance(value, tuple) else value),
    "upper": ("in upper case", lambda value: str(value).upper()),
    "inverted": ("inverted", lambda value: not value),
    "object": (
        "`false` is `null`, which turns graphs off; `true` is the default",
        lambda value: {} if value else None,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeKey:
    """A key of `runtime` for a checkpoint; `releases/checkpoint_keys.toml` explains the columns."""

    name: str
    argument: str = ""
    handled: str = ""
    unused: str = ""
    refused: str = ""
    conversion: Literal["", "list", "upper", "inverted", "object"] = ""
    source: str

    @property
    def note(self) -> str:
        """Describe the conversion of the value; empty if there is none."""
        return _CONVERSIONS[self.conversion][0]

    def convert(self, value: ParameterValue) -> Any:
        return _CONVERSIONS[self.conversion][1](value)


RUNTIME_KEYS = {row.name: row for row in read_table("checkpoint_keys", "keys", RuntimeKey)}
"""Every key that a release with the LLM API's PyTorch backend knows."""

HANDLED_KEYS = frozenset(name for name, key in RUNTIME_KEYS.items() if key.handled)


def parse_llm_args(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values of all known arguments; unknown names pass until the version is known.

    Args:
        values: the section as YAML has it; null counts as not set, except for an object, where it
            turns the feature off.

    Raises:
        SettingsError: an argument is of the wrong type, out of range, or not to be set; its
            ``param`` names it.
    """
    try:
        values = json.loads(json.dumps(values, allow_nan=False))  # all names are strings
    except (TypeError, ValueError) as error:
        raise _error("", f"holds a value that JSON cannot express ({error}).") from None
    parsed = _parse(values, LLM_ARGUMENTS, "")
    _check_drafts(parsed.get("speculative_config") or {})
    return parsed


def check_llm_args(values: Mapping[str, Any], tensorrt_llm_version: str) -> None:
    """Refuse names that a TensorRT-LLM version does not know.

    Names outside a table that is no longer complete pass: TensorRT-LLM refuses them itself.

    Raises:
        SettingsError: an argument is unknown or of another version; its ``param`` names it.
    """
    _check(values, LLM_ARGUMENTS, "", tensorrt_llm_version)
    kind = (values.get("speculative_config") or {}).get("decoding_type")
    row = next((row for row in _DECODING_TYPES if row.name == kind), None)
    if row is not None and not rows_for([row], tensorrt_llm_version):
        raise _error(
            "speculative_config.decoding_type",
            f"is {row.name}, a kind of TensorRT-LLM {describe_releases(row)}, not of "
            f"{tensorrt_llm_version}; choose another.",
        )


def llm_args_schema() -> dict[str, Any]:
    """Return the JSON schema of the section, for every release."""
    return _schema(LLM_ARGUMENTS)


def _schema(rows: Sequence[Argument]) -> dict[str, Any]:
    properties = {row.name: _value_schema(row) for row in rows if not row.refused}
    return {"properties": properties, "type": "object"}


def _value_schema(row: Argument) -> dict[str, Any]:
    limits = {"maximum": row.maximum, "minimum": row.minimum}
    number = {name: limit for name, limit in limits.items() if limit is not None}
    text = {"enum": [*row.choices, None]} if row.choices else {"type": ["string", "null"]}
    schemas: dict[Kind, dict[str, Any]] = {
        "bool": {"type": ["boolean", "null"]},
        "int": {**number, "type": ["integer", "null"]},
        "number": {**number, "type": ["number", "null"]},
        "text": text,
        "ints": {
            "items": {**number, "type": "integer"},
            "minItems": 1,
            "type": ["array", "null"],
        },
        "mapping": {**(_schema(row.fields) if row.fields else {}), "type": ["object", "null"]},
        "any": {},
    }
    return schemas[row.kind]


def _parse(values: Mapping[str, Any], rows: Sequence[Argument], path: str) -> dict[str, Any]:
    known = {row.name: row for row in rows}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        row = known.get(name)
        if row is not None and row.refused:
            raise _error(path + name, f"cannot be set. {row.refused}")
        if value is None and (row is None or row.kind != "mapping"):
            continue
        if row is None or value is None:
            parsed[name] = value
        elif not _is_valid(row, value):
            raise _error(path + name, f"is {shown(value)}; it must be {_rule(row)}.")
        else:
            parsed[name] = _parse(value, row.fields, f"{path}{name}.") if row.fields else value
    return parsed


def _check(values: Mapping[str, Any], rows: Sequence[Argument], path: str, version: str) -> None:
    known = {row.name: row for row in rows}
    here = {row.name for row in rows_for(rows, version)}
    for name, value in values.items():
        row = known.get(name)
        if row is None:
            if not holds("knows_arguments", version):
                continue
            settable = [other for other in here if not known[other].refused]
            close = did_you_mean(name, settable)
            hint = f" Did you mean {close}?" if close else ""
            whose = f"a field of {path.rstrip('.')}" if path else "an argument of LLM(…)"
            raise _error(path + name, f"is not {whose} in TensorRT-LLM {version}.{hint}")
        if name not in here:
            raise _error(
                path + name,
                f"is an argument of TensorRT-LLM {describe_releases(row)}, not of {version}. "
                "Remove it.",
            )
        if row.fields and isinstance(value, Mapping):
            _check(value, row.fields, f"{path}{name}.", version)


def _check_drafts(config: Mapping[str, Any]) -> None:
    """Refuse speculative decoding that a checkpoint does not have, and models outside the disk.

    The field of the draft model has had three names.
    """
    if not config:
        return
    kind = config.get("decoding_type")
    if kind not in DECODING_TYPES:
        raise _error(
            "speculative_config.decoding_type",
            f"is {shown(kind)}; it must be one of {', '.join(DECODING_TYPES)}.",
        )
    for name in ("speculative_model", "speculative_model_dir", "pytorch_weights_path"):
        path = config.get(name)
        if path is not None and not str(path).startswith("/"):
            raise _error(
                f"speculative_config.{name}",
                f"is {shown(path)}; it must be a folder in the container, such as one that "
                "`weights` of config.yaml mounts: the engine downloads nothing.",
            )


def _is_valid(row: Argument, value: Any) -> bool:
    if row.kind == "any":
        return True
    if row.kind == "bool":
        return isinstance(value, bool)
    if row.kind == "mapping":
        return isinstance(value, Mapping)
    if row.kind == "text":
        return isinstance(value, str) and (not row.choices or value in row.choices)
    if row.kind == "ints":
        return isinstance(value, list) and bool(value) and all(_fits(row, item) for item in value)
    return _fits(row, value)


def _fits(row: Argument, value: Any) -> bool:
    types = (int, float) if row.kind == "number" else (int,)
    if isinstance(value, bool) or not isinstance(value, types):
        return False
    above = row.minimum is None or value >= row.minimum
    return above and (row.maximum is None or value <= row.maximum)


def _rule(row: Argument) -> str:
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    limits = "" if row.minimum is None else f", at least {row.minimum}"
    limits = limits if row.maximum is None else f" from {row.minimum} to {row.maximum}"
    return {
        "bool": "true or false",
        "int": f"a whole number{limits}",
        "number": f"a number{limits}",
        "text": "a string",
        "ints": f"a list of whole numbers{limits}",
        "mapping": "a mapping",
        "any": "a value",
    }[row.kind]


def _error(path: str, problem: str) -> SettingsError:
    name = f"{SECTION}.{path}" if path else SECTION
    return SettingsError(f"config.yaml: model_metadata.runtime.{name} {problem}", param=name)
