"""Options of LMI become keys of `model_metadata`, and a report of what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.lmi_import.option import Fate, Option
from trtllm_truss.settings.lmi_import.options import OPTIONS
from trtllm_truss.settings.lmi_import.reading import Given

MOUNTED_MODEL = "/opt/ml/model"
"""Where SageMaker puts the artifacts that belong to a serving.properties."""

_INPUT_LEN = 1024
"""LMI's own max_input_len where only max_output_len is given."""
_AWQ_CALIB_SIZE = 32
"""Samples beyond which TensorRT-LLM's quantize.py does not go for AWQ."""
_FOLDERS = ("s3://", "/", ".", "~")
_DEGREE = "tensor_parallel_degree"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one option.

    Attributes:
        written: how it was written.
        value: as it may be printed.
        fate: what became of it.
        sentence: where it went, or why not.
    """

    written: str
    value: str
    fate: Fate
    sentence: str


@dataclass(frozen=True, slots=True)
class Imported:
    """An LMI configuration in our words.

    Attributes:
        metadata: keys of `model_metadata`, not checked yet.
        rows: one for each option.
    """

    metadata: dict[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What an option's meaning depends on.

    Attributes:
        builds: whether there is an engine to be built.
        method: how it is quantized; empty for not at all.
        most_ranks: what `tensor_parallel_degree=max` means; None if that is not known.
    """

    builds: bool
    method: str
    most_ranks: int | None


def convert_options(given: Sequence[Given], gpus: int | None) -> Imported:
    """What LMI was told, said to us.

    Args:
        given: each option once.
        gpus: how many the machine has; None if that is not known.

    Raises:
        SettingsError: a value is none of its option's.
    """
    values = {option.name: option for option in given}
    surroundings = _Surroundings(_builds(values), _method(values), _most_ranks(values, gpus))
    metadata: dict[str, Any] = {}
    places = {name: place for place, name in enumerate(OPTIONS)}
    ordered = sorted(given, key=lambda option: places.get(option.name, len(places)))
    rows = tuple(_apply(option, metadata, surroundings) for option in ordered)
    if "model_id" not in values:
        metadata["engine_repository"] = MOUNTED_MODEL
    _complete(metadata.get("build", {}))
    return Imported(metadata, rows)


def _builds(values: Mapping[str, Given]) -> bool:
    """Whether LMI would have made the engine: of a model on the Hub, or with options of a build.

    `dtype` alone says nothing: it stands beside engines that are there as well.
    """
    if "model_id" not in values:
        return False
    options = [OPTIONS[name] for name in values if name in OPTIONS and name != "dtype"]
    asked = any(option.target.startswith("build.") and not option.prebuilt for option in options)
    return asked or not values["model_id"].value.startswith(_FOLDERS)


def _method(values: Mapping[str, Given]) -> str:
    for name in ("quantize", "quant_algo"):
        if name in values:
            return str(_converted(OPTIONS[name], values[name]) or "")
    return ""


def _most_ranks(values: Mapping[str, Given], gpus: int | None) -> int | None:
    name = "pipeline_parallel_degree"
    stages = _converted(OPTIONS[name], values[name]) if name in values else 1
    return None if gpus is None else gpus // max(int(str(stages)), 1)


def _apply(given: Given, metadata: dict[str, Any], surroundings: _Surroundings) -> Row:
    option = OPTIONS.get(given.name)
    if option is None:
        return _row(given, Fate.UNSUPPORTED, "LMI's documentation does not name it")
    if option.only and given.value.lower() not in map(str.lower, option.only):
        allowed = " and ".join(option.only)
        return _row(given, Fate.UNSUPPORTED, f"only {allowed} can be taken over: {option.why}")
    if option.fate is not Fate.MAPPED:
        return _row(given, option.fate, option.why)
    if option.methods and surroundings.method not in option.methods:
        return _row(given, Fate.NOT_NEEDED, f"read with {' and '.join(option.methods)} only")
    target = option.target
    if target.startswith("build.") and not surroundings.builds:
        if not option.prebuilt:
            return _row(given, Fate.NOT_NEEDED, "the engine is built already")
        target = option.prebuilt
    if given.name == _DEGREE and given.value.lower() == "max":
        if surroundings.most_ranks is None:
            return _row(given, Fate.UNSUPPORTED, "say with --gpus how many there are")
        value: object = surroundings.most_ranks
    else:
        value = _converted(option, given)
    _put(metadata, target, value)
    return _row(given, Fate.MAPPED, f"{target} ({option.why})" if option.why else target)


def _row(given: Given, fate: Fate, sentence: str) -> Row:
    return Row(given.written, given.shown, fate, sentence)


def _converted(option: Option, given: Given) -> object:
    try:
        return option.convert(given.value)
    except ValueError as error:
        must = "it must be a number" if option.convert in (int, float) else str(error)
        raise SettingsError(f"{given.written} is {given.value!r}; {must}.") from None


def _put(metadata: dict[str, Any], path: str, value: object) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        metadata = metadata.setdefault(parent, {})
    metadata[key] = value


def _complete(build: dict[str, Any]) -> None:
    """Says what LMI leaves to its defaults, or to TensorRT-LLM's."""
    if "max_output_len" in build:
        build.setdefault("max_input_len", _INPUT_LEN)
    quantization = build.get("quantization", {})
    if quantization.get("method") is None:
        build.pop("quantization", None)
    elif quantization["method"] == "awq" and "calib_size" in quantization:
        quantization["calib_size"] = min(quantization["calib_size"], _AWQ_CALIB_SIZE)
