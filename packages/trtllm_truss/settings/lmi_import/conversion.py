"""Conversion of LMI's options to keys of `model_metadata`, with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.lmi_import.option import OptionRule, Outcome
from trtllm_truss.settings.lmi_import.options import OPTIONS
from trtllm_truss.settings.lmi_import.reading import LmiOption

MOUNTED_MODEL = "/opt/ml/model"
"""Folder of SageMaker for the artifacts of a serving.properties."""

MOUNTS = (MOUNTED_MODEL, ".")
"""Names of the folder that holds a serving.properties."""

_INPUT_LEN = 1024
"""LMI's default max_input_len if only max_output_len is set."""
_AWQ_CALIB_SIZE = 32
"""Limit of samples for AWQ in TensorRT-LLM's quantize.py."""
_FOLDERS = ("s3://", "/", ".", "~")
_DEGREE = "tensor_parallel_degree"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report.

    Attributes:
        spelling: the option as found: `option.dtype`, `OPTION_DTYPE`, `HF_MODEL_ID` …
        value: safe to print.
        outcome: its outcome.
        detail: its key, or the reason.
    """

    spelling: str
    value: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """A converted LMI configuration.

    Attributes:
        metadata: keys of `model_metadata`, not validated.
        rows: one per option.
    """

    metadata: dict[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class _Context:
    """Context of an option's meaning.

    Attributes:
        builds: True if LMI would build an engine.
        method: its quantization; empty for none.
        max_ranks: value of `tensor_parallel_degree=max`; None if unknown.
    """

    builds: bool
    method: str
    max_ranks: int | None


def convert_options(
    given: Sequence[LmiOption], gpus: int | None, *, of_repository: bool = False
) -> ConversionResult:
    """Convert options.

    Args:
        given: each option once.
        gpus: number of GPUs of the machine; None if unknown.
        of_repository: the options come from a repository and not from the operator, so they can
            neither allow code to run nor name another repository.

    Raises:
        SettingsError: an option has an invalid value.
    """
    not_taken = [_not_taken(each) for each in given if of_repository and _is_operators(each)]
    if of_repository:
        given = [option for option in given if not _is_operators(option)]
    values = {option.name: option for option in given}
    context = _Context(_builds(values), _method(values), _max_ranks(values, gpus))
    metadata: dict[str, Any] = {}
    places = {name: place for place, name in enumerate(OPTIONS)}
    ordered = sorted(given, key=lambda option: places.get(option.name, len(places)))
    rows = tuple(_apply(option, metadata, context) for option in ordered)
    if "model_id" not in values:
        metadata["engine_repository"] = MOUNTED_MODEL
    _complete(metadata.get("build", {}))
    return ConversionResult(metadata, (*rows, *not_taken))


def _is_operators(option: LmiOption) -> bool:
    if option.name == "model_id" and is_mounted(option.value):
        return False
    return option.name in OPTIONS and bool(OPTIONS[option.name].operator_says)


def _not_taken(option: LmiOption) -> Row:
    detail = f"only you choose it, with {OPTIONS[option.name].operator_says} of init"
    return _row(option, Outcome.NOT_TAKEN, detail)


def is_mounted(model: str) -> bool:
    """Return True if `model_id` names the folder of its serving.properties, or one below."""
    return any(model.rstrip("/") == mount or model.startswith(f"{mount}/") for mount in MOUNTS)


def _builds(values: Mapping[str, LmiOption]) -> bool:
    """Return True if LMI would build the engine: from a model on the Hub, or with build options.

    `dtype` alone decides nothing: configurations of prebuilt engines have it too.
    """
    if "model_id" not in values:
        return False
    options = [OPTIONS[name] for name in values if name in OPTIONS and name != "dtype"]
    asked = any(option.target.startswith("build.") and not option.prebuilt for option in options)
    return asked or not values["model_id"].value.startswith(_FOLDERS)


def _method(values: Mapping[str, LmiOption]) -> str:
    for name in ("quantize", "quant_algo"):
        if name in values:
            return str(_converted(OPTIONS[name], values[name]) or "")
    return ""


def _max_ranks(values: Mapping[str, LmiOption], gpus: int | None) -> int | None:
    name = "pipeline_parallel_degree"
    stages = _converted(OPTIONS[name], values[name]) if name in values else 1
    return None if gpus is None else gpus // max(int(str(stages)), 1)


def _apply(given: LmiOption, metadata: dict[str, Any], context: _Context) -> Row:
    option = OPTIONS.get(given.name)
    if option is None:
        return _row(given, Outcome.UNSUPPORTED, "unknown to LMI's documentation")
    if option.only and given.value.lower() not in map(str.lower, option.only):
        allowed = " and ".join(option.only)
        return _row(given, Outcome.UNSUPPORTED, f"only {allowed} can be converted: {option.reason}")
    if option.outcome is not Outcome.MAPPED:
        return _row(given, option.outcome, option.reason)
    if option.methods and context.method not in option.methods:
        return _row(given, Outcome.NOT_NEEDED, f"applies to {' and '.join(option.methods)} only")
    target = option.target
    if target.startswith("build.") and not context.builds:
        if not option.prebuilt:
            return _row(given, Outcome.NOT_NEEDED, "the engine is prebuilt")
        target = option.prebuilt
    if given.name == _DEGREE and given.value.lower() == "max":
        if context.max_ranks is None:
            return _row(given, Outcome.UNSUPPORTED, "give the number of GPUs with --gpus")
        value: object = context.max_ranks
    else:
        value = _converted(option, given)
    _put(metadata, target, value)
    return _row(given, Outcome.MAPPED, f"{target} ({option.reason})" if option.reason else target)


def _row(given: LmiOption, outcome: Outcome, detail: str) -> Row:
    return Row(given.spelling, given.shown, outcome, detail)


def _converted(option: OptionRule, given: LmiOption) -> object:
    try:
        return option.convert(given.value)
    except ValueError as error:
        must = "it must be a number" if option.convert in (int, float) else str(error)
        raise SettingsError(f"{given.spelling} is {given.value!r}; {must}.") from None


def _put(metadata: dict[str, Any], path: str, value: object) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        metadata = metadata.setdefault(parent, {})
    metadata[key] = value


def _complete(build: dict[str, Any]) -> None:
    """Fill in defaults of LMI and limits of TensorRT-LLM."""
    if "max_output_len" in build:
        build.setdefault("max_input_len", _INPUT_LEN)
    quantization = build.get("quantization", {})
    if quantization.get("method") is None:
        build.pop("quantization", None)
    elif quantization["method"] == "awq" and "calib_size" in quantization:
        quantization["calib_size"] = min(quantization["calib_size"], _AWQ_CALIB_SIZE)
