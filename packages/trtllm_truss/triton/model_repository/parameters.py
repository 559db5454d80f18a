"""Executor parameters as an operator writes them, checked and turned into ``config.pbtxt`` strings.

The backend reads a value of the wrong type as if it were not there, warns in the midst of its log
and takes its default; so everything is refused here, before anything starts.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

from trtllm_truss.engines.runtime_values import BOOLEANS
from trtllm_truss.errors import SettingsError
from trtllm_truss.triton.model_repository.contract import PARAMETERS
from trtllm_truss.triton.model_repository.schema import Parameter, Release, rows_for

Value = bool | int | float | str | None

_OWNED = {"gpt_model_path": "it is the downloaded engine's folder"}
_FIXED = {
    "exclude_input_in_output": ("true", "an answer never repeats its prompt"),
    "num_nodes": ("1", "all ranks are started on one machine"),
    "speculative_decoding_fast_logits": (
        "false",
        "it needs orchestrator mode, and here the ranks of one engine are one MPI job (leader "
        "mode)",
    ),
}
_PER_INSTANCE = ("gpu_device_ids", "participant_ids")
_TOGETHER = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def check_parameters(
    values: Mapping[str, Value],
    tensorrt_llm_version: str | None,
    *,
    max_beam_width: int | None = None,
) -> dict[str, str]:
    """Turns ``model_metadata.runtime`` into strings as ``config.pbtxt`` holds them.

    Nothing is filled in but what the engine fixes. In particular no default is made up for
    ``kv_cache_free_gpu_mem_fraction``: alone, ``max_tokens_in_paged_kv_cache`` takes its place,
    but together the smaller of the two wins.

    Args:
        values: typed as YAML has them, or strings; blank ones and None are not set and left out.
        tensorrt_llm_version: whose parameters they are; None allows those of every version.
        max_beam_width: what the engine was built for, used where ``values`` does not say.

    Raises:
        SettingsError: a parameter is unknown, of another version, of the wrong type, out of
            range, or set by this project alone; its ``param`` names it.
    """
    checked = {
        name: _convert(check_parameter(name, tensorrt_llm_version), value)
        for name, value in values.items()
        if value is not None and value != ""
    }
    some = [name for name in _TOGETHER if name in checked]
    if some and len(some) < len(_TOGETHER):
        missing = next(name for name in _TOGETHER if name not in checked)
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{some[0]} is set without {missing}; set "
            f"{', '.join(_TOGETHER)}, or none of them.",
            param=missing,
        )
    known = {row.name for row in rows_for(PARAMETERS, tensorrt_llm_version)}
    if max_beam_width is not None and "max_beam_width" in known:
        checked.setdefault("max_beam_width", str(max_beam_width))
    return checked


def check_parameter(name: str, tensorrt_llm_version: str | None) -> Parameter:
    """Looks a parameter up in the contract.

    Raises:
        SettingsError: it is unknown, of another version, or set by this project alone.
    """
    if name in _OWNED:
        raise SettingsError(f"{name} cannot be set: {_OWNED[name]}.", param=name)
    known = {row.name: row for row in rows_for(PARAMETERS, tensorrt_llm_version)}
    if name in known:
        return known[name]
    for row in PARAMETERS:
        if row.name == name:
            raise SettingsError(
                f"{name} is a parameter of TensorRT-LLM {_span(row)}, not of "
                f"{tensorrt_llm_version}. {row.instead or 'Remove it.'}",
                param=name,
            )
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise SettingsError(f"{name} is not a parameter of the tensorrt_llm model.{hint}", param=name)


def _convert(row: Parameter, value: Value) -> str:
    text = _as_text(row, value)
    if text is None:
        raise _wrong(row.name, value, _wanted(row))
    if row.name in _FIXED and text != _FIXED[row.name][0]:
        only, reason = _FIXED[row.name]
        raise _wrong(row.name, value, f"{only}: {reason}")
    return text


def _as_text(row: Parameter, value: Value) -> str | None:
    """The value as the backend reads it; None if it is of the wrong type or out of range."""
    if row.kind == "bool":
        flag = BOOLEANS.get(str(value).strip().lower())
        return None if flag is None else str(flag).lower()
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    if row.kind == "int":
        return text if _whole(row, text) else None
    if row.kind == "ints":
        items = [item.strip() for item in text.split(",")]
        return ",".join(items) if all(_whole(row, item) for item in items) else None
    if row.kind == "float":
        return text if _fraction(row, text) else None
    return text if not row.choices or text in row.choices else None


def _whole(row: Parameter, text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and int(text) >= (row.minimum or 0)


def _fraction(row: Parameter, text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    if row.minimum is None:
        return 0 < number < 1
    return math.isfinite(number) and row.minimum <= number <= 1


def _wanted(row: Parameter) -> str:
    minimum = row.minimum or 0
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    if row.name in _PER_INSTANCE:
        return (
            f"whole numbers, at least {minimum}, with commas between them (`;` parts several "
            "instances in one server: orchestrator mode, which is not offered)"
        )
    return {
        "bool": "true or false",
        "int": f"a whole number, at least {minimum}",
        "ints": f"whole numbers, at least {minimum}, with commas between them",
        "float": "above 0 and below 1" if row.minimum is None else f"from {row.minimum} to 1",
        "text": "a text",
        "path": "a path",
    }[row.kind]


def _wrong(name: str, value: Value, wanted: str) -> SettingsError:
    return SettingsError(
        f"config.yaml: model_metadata.runtime.{name} is {value!r}; it must be {wanted}.",
        param=name,
    )


def _span(row: Parameter) -> str:
    if row.until is None:
        return f"{_text(row.since)} and later"
    return f"before {_text(row.until)}"


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
