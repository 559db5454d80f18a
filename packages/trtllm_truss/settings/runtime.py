"""`model_metadata.runtime`, parsed once into typed values.

Its keys are parameters of Triton's ``tensorrt_llm`` model by release.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from trtllm_truss.errors import SettingsError
from trtllm_truss.literals import BOOLEANS
from trtllm_truss.releases import (
    Release,
    describe_releases,
    dotted,
    read_file,
    read_table,
    rows_for,
)
from trtllm_truss.validation import did_you_mean, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key of the model's ``parameters``; `releases/parameters.toml` explains the columns."""

    name: str
    kind: Literal["bool", "int", "ints", "float", "text", "tree", "path"]
    default: str | None = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = 2**31 - 1
    read_as: str = ""
    ignored: str = ""
    since: Release
    until: Release | None = None
    instead: str = ""
    source: str


MODEL_FIELDS = read_table("parameters", "model_fields", Parameter)
"""Keys of `runtime` that are fields of config.pbtxt, not parameters."""

PARAMETERS = (
    *read_table("parameters", "parameters", Parameter),
    *read_table("parameters", "parameters_left_out", Parameter),
)

RuntimeValue = bool | int | float | str | None
ParameterValue = bool | int | float | str | tuple[int, ...]

SECTION = "llm_args"

GUIDES = "guided_decoding_backend"
"""The key that enables guided decoding."""

GRAMMAR_LIBRARY = "xgrammar"
"""The value of `GUIDES` that `init` writes; every release with the key accepts it."""

_ROWS = {row.name: row for row in (*MODEL_FIELDS, *PARAMETERS)}
"""The newest row of each key."""
KEYS = frozenset(_ROWS)
"""Names of the parameters of all releases."""

GUIDES_SINCE = describe_releases(_ROWS[GUIDES])
"""Releases with guided decoding, such as `0.19.0 and later`."""

_SCALARS = TypeAdapter(dict[str, RuntimeValue])
_OWNED = {"gpt_model_path": "it is the downloaded engine's folder"}
_FIXED: dict[str, tuple[ParameterValue, str]] = {
    "exclude_input_in_output": (True, "a response never repeats its prompt"),
    "num_nodes": (1, "`model_metadata.nodes` sets it"),
    "speculative_decoding_fast_logits": (
        False,
        "it needs orchestrator mode, and here the ranks of one engine are one MPI job (leader "
        "mode)",
    ),
}
_PER_INSTANCE = ("gpu_device_ids", "participant_ids")
_WINDOW, _NGRAM, _VERIFICATION = _TOGETHER = (
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
)
_MODE, _LOOKAHEAD = "decoding_mode", "lookahead"
_NODE = r"\{\s*\d+(\s*,\s*\d+)*\s*\}"
_TREE = re.compile(rf"{_NODE}(\s*,\s*{_NODE})*", re.ASCII)
_LONGEST_NUMBER = 40
"""Maximum characters; Python refuses to parse thousands of digits."""
_SMALLEST_FLOAT = 2.0**-126
"""`std::stof` throws below it."""


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """`runtime`: all keys that are set, and the ones that this project uses, by name.

    Attributes:
        parameters: parameters of config.pbtxt, by name.
        max_batch_size: a field of config.pbtxt.
        instance_count: likewise, in its instance group.
        llm_args: arguments of ``tensorrt_llm.LLM``, not yet parsed; see `engines.checkpoint`.
    """

    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    max_batch_size: int | None = None
    instance_count: int | None = None
    max_beam_width: int | None = None
    max_tokens_in_paged_kv_cache: int | None = None
    max_attention_window_size: tuple[int, ...] = ()
    kv_cache_free_gpu_mem_fraction: float | None = None
    gpu_device_ids: tuple[int, ...] = ()
    batch_scheduler_policy: str | None = None
    enable_kv_cache_reuse: bool = False
    enable_chunked_context: bool | None = None
    guided_decoding_backend: str | None = None
    xgrammar_tokenizer_info_path: str | None = None
    llm_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> RuntimeOptions:
        """Parse the section.

        The backend ignores a value of the wrong type, logs a warning and uses its default; so
        everything is refused here, before anything starts. No default is filled in:
        ``max_tokens_in_paged_kv_cache`` alone replaces ``kv_cache_free_gpu_mem_fraction``, but of
        both the smaller applies.

        Args:
            values: typed as in YAML, or the strings of a ``config.pbtxt``; a blank string and None
                count as not set. ``llm_args`` is a mapping.

        Raises:
            SettingsError: a key is unknown, of the wrong type, out of range, or set by this project
                only; its ``param`` names it.
        """
        parsed = {
            name: _parse(name, value)
            for name, value in values.items()
            if name != SECTION and value is not None and value != ""
        }
        _check_together(parsed)
        named: dict[str, Any] = {f.name: parsed[f.name] for f in fields(cls) if f.name in parsed}
        parameters = {
            name: value for name, value in parsed.items() if _ROWS[name] not in MODEL_FIELDS
        }
        llm_args = {} if (given := values.get(SECTION)) is None else given
        if not isinstance(llm_args, Mapping) or not all(isinstance(name, str) for name in llm_args):
            raise _error(SECTION, f"is {shown(llm_args)}; it must be a mapping of arguments.")
        return cls(parameters=parameters, llm_args=llm_args, **named)

    def check_version(self, tensorrt_llm_version: str) -> None:
        """Refuse parameters and values that a TensorRT-LLM version does not support.

        Raises:
            SettingsError: a parameter or its value belongs to another version; its ``param`` names
                it.
        """
        known = {row.name: row for row in rows_for(PARAMETERS, tensorrt_llm_version)}
        for name, value in self.parameters.items():
            if name not in known:
                raise _error(
                    name,
                    f"is a parameter of TensorRT-LLM {describe_releases(_all_releases(name))}, not "
                    f"of {tensorrt_llm_version}. {_ROWS[name].instead or 'Remove it.'}",
                )
            text = parameter_text(value)
            if _typed(known[name], text) is None:
                raise _error(
                    name,
                    f"is {text}; for TensorRT-LLM {tensorrt_llm_version} it must be "
                    f"{_rule(known[name])}.",
                )
        if self.parameters.get(_MODE) == _LOOKAHEAD and _WINDOW in known.keys() - self.parameters:
            raise _error(_MODE, f"is {_LOOKAHEAD}; set {', '.join(_TOGETHER)} too.")

    @staticmethod
    def lacks_guides(tensorrt_llm_version: str | None) -> str:
        """Return why a release's executor has no guided decoding; empty if it has, or is unknown.

        Returns:
            The end of a sentence about guided decoding.
        """
        if any(row.name == GUIDES for row in rows_for(PARAMETERS, tensorrt_llm_version)):
            return ""
        return f"needs TensorRT-LLM {dotted(_ROWS[GUIDES].since)}; this is {tensorrt_llm_version}"

    def ignored_by(self, tensorrt_llm_version: str) -> Iterator[tuple[str, str]]:
        """Yield the parameters that the backend ignores, each with the reason."""
        for row in rows_for(PARAMETERS, tensorrt_llm_version):
            if row.ignored and row.name in self.parameters:
                yield row.name, row.ignored

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls.parse, handler.generate_schema(dict[str, Any])
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(_SCALARS.core_schema)
        return {**schema, "properties": {SECTION: {"type": "object"}}}


def is_argument(name: str) -> bool:
    """Return True if the name is an argument of `tensorrt_llm.LLM`."""
    return name in read_file("llm_arguments")["arguments"]


def parameter_text(value: ParameterValue) -> str:
    """Return a value as it is written in ``config.pbtxt``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _all_releases(name: str) -> Parameter:
    """Return a row that covers all releases of a key."""
    rows = [row for row in PARAMETERS if row.name == name]
    return replace(rows[-1], since=rows[0].since)


def _parse(name: str, value: Any) -> ParameterValue:
    if name in _OWNED:
        raise _error(name, f"cannot be set: {_OWNED[name]}.")
    row = _ROWS.get(name)
    if row is None:
        close = did_you_mean(name, [*_ROWS, SECTION])
        hint = f" Did you mean {close}?" if close else ""
        if is_argument(name):
            hint = f" For a checkpoint it is runtime.{SECTION}.{name}."
        raise _error(name, f"is not a parameter of the tensorrt_llm model.{hint}")
    parsed = _typed(row, value)
    if parsed is None:
        raise _wrong(name, value, _rule(row))
    if name in _FIXED and parsed != _FIXED[name][0]:
        only, reason = _FIXED[name]
        raise _wrong(name, value, f"{str(only).lower()}: {reason}")
    return parsed


def _typed(row: Parameter, value: Any) -> ParameterValue | None:
    """Convert a value as the backend would; None if it is of the wrong type or out of range."""
    text = str(value).strip()
    if row.kind == "bool":
        return BOOLEANS.get(text.lower())
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if row.kind == "int":
        return _whole(row, text)
    if row.kind == "ints":
        numbers = [_whole(row, item.strip()) for item in text.split(",")]
        known = tuple(number for number in numbers if number is not None)
        return known if len(known) == len(numbers) else None
    if row.kind == "float":
        return _fraction(row, text)
    if row.kind == "tree":
        numbers = [_whole(row, item) for item in re.findall(r"\d+", text)]
        return text if _TREE.fullmatch(text) and None not in numbers else None
    return text if not row.choices or text in row.choices else None


def _whole(row: Parameter, text: str) -> int | None:
    is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) < _LONGEST_NUMBER
    return int(text) if is_number and (row.minimum or 0) <= int(text) <= row.maximum else None


def _fraction(row: Parameter, text: str) -> float | None:
    """Return a number that is also in range as a 32-bit float, which the backend reads."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not 0 <= number <= 1 or 0 < number < _SMALLEST_FLOAT:  # NaN is not
        return None
    (single,) = struct.unpack("f", struct.pack("f", number))
    if row.minimum is None:
        return number if 0 < single < 1 else None
    return number if row.minimum <= single else None


def _check_together(values: Mapping[str, ParameterValue]) -> None:
    given = [name for name in _TOGETHER if name in values]
    missing = [name for name in _TOGETHER if name not in values]
    if not given:
        return
    if missing:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{given[0]} is set without {missing[0]}; set "
            f"{', '.join(_TOGETHER)}, or none of them.",
            param=missing[0],
        )
    if values.get(_MODE) != _LOOKAHEAD:
        raise _error(_WINDOW, f"has no effect unless {_MODE} is {_LOOKAHEAD}; set it.")
    # `isLegal` of cpp/tensorrt_llm/executor/lookaheadDecodingConfig.cpp, near 0.19
    if values[_NGRAM] == 1 and (values[_WINDOW], values[_VERIFICATION]) != (1, 0):
        raise _error(_NGRAM, f"is 1, which needs {_WINDOW} 1 and {_VERIFICATION} 0.")


def _rule(row: Parameter) -> str:
    limits = f"from {row.minimum or 0} to {row.maximum}"
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    if row.name in _PER_INSTANCE:
        return (
            f"whole numbers {limits} with commas between them (`;` separates several instances in "
            "one server: orchestrator mode, which is not offered)"
        )
    return {
        "bool": "true or false",
        "int": f"a whole number {limits}",
        "ints": f"whole numbers {limits} with commas between them",
        "float": "above 0 and below 1" if row.minimum is None else f"from {row.minimum} to 1",
        "text": "a string",
        "tree": "of the form {0}, {0, 0}, {1}: the paths of a tree, each in braces",
        "path": "a path",
    }[row.kind]


def _wrong(name: str, value: object, rule: str) -> SettingsError:
    return _error(name, f"is {value!r}; it must be {rule}.")


def _error(name: str, problem: str) -> SettingsError:
    return SettingsError(f"config.yaml: model_metadata.runtime.{name} {problem}", param=name)
