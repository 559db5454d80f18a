"""Conversion of LMI's options to keys of `model_metadata`, with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.llm_runtime_keys import RUNTIME_KEYS
from trtllm_workbench.lmi_import.option import OptionRule, Outcome
from trtllm_workbench.lmi_import.options import OPTIONS, PYTORCH
from trtllm_workbench.lmi_import.reading import LmiOption

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
_BUILD = "build."

Kind = Literal["build", "engine", "checkpoint"]


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
        kind: "build" if LMI would build an engine, otherwise the kind of the one to serve.
        method: its quantization; empty for none.
        max_ranks: value of `tensor_parallel_degree=max`; None if unknown.
    """

    kind: Kind
    method: str
    max_ranks: int | None


def convert_options(
    given: Sequence[LmiOption],
    gpus: int | None,
    *,
    of_repository: bool = False,
    beside_checkpoint: bool = False,
) -> ConversionResult:
    """Convert options.

    Args:
        given: each option once.
        gpus: number of GPUs of the machine; None if unknown.
        of_repository: the options come from a repository and not from the operator, so they can
            neither allow code to run nor name another repository.
        beside_checkpoint: the folder that holds the options holds a checkpoint.

    Raises:
        SettingsError: an option has an invalid value.
    """
    not_taken = [_not_taken(each) for each in given if of_repository and _is_operators(each)]
    if of_repository:
        given = [option for option in given if not _is_operators(option)]
    values = {option.name: option for option in given}
    kind = _kind(values, beside_checkpoint)
    context = _Context(kind, _method(values), _max_ranks(values, gpus))
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


def _kind(values: Mapping[str, LmiOption], beside_checkpoint: bool) -> Kind:
    """Return "build" if LMI would build: from a model on the Hub, or with build options.

    `dtype` alone decides nothing: configurations of prebuilt engines have it too.
    """
    if "backend" in values and values["backend"].value.lower() == PYTORCH:
        return "checkpoint"
    model = values.get("model_id")
    if model is not None:
        options = [OPTIONS[name] for name in values if name in OPTIONS and name != "dtype"]
        asked = any(each.target.startswith(_BUILD) and not each.prebuilt for each in options)
        if asked or not model.value.startswith(_FOLDERS):
            return "build"
    is_beside = model is None or model.value.rstrip("/") in MOUNTS
    return "checkpoint" if is_beside and beside_checkpoint else "engine"


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
    target = _target(option, context.kind)
    if left_out := _left_out(given, option, target, context):
        return _row(given, *left_out)
    if given.name == _DEGREE and given.value.lower() == "max":
        if context.max_ranks is None:
            return _row(given, Outcome.UNSUPPORTED, "give the number of GPUs with --gpus")
        value: object = context.max_ranks
    else:
        value = _converted(option, given)
    _put(metadata, target, value)
    note = f" ({option.reason})" if option.reason and target == option.target else ""
    return _row(given, Outcome.MAPPED, target + note)


def _target(option: OptionRule, kind: Kind) -> str:
    if kind == "checkpoint":
        return option.checkpoint or option.prebuilt or option.target
    if kind == "engine" and option.prebuilt:
        return option.prebuilt
    return option.target


def _left_out(
    given: LmiOption, option: OptionRule, target: str, context: _Context
) -> tuple[Outcome, str] | None:
    """Return why an option is not converted; None if it is."""
    if context.kind == "checkpoint" and option.checkpoint:
        return None
    if option.only and given.value.lower() not in map(str.lower, option.only):
        allowed = " and ".join(option.only)
        return Outcome.UNSUPPORTED, f"only {allowed} can be converted: {option.reason}"
    if option.outcome is not Outcome.MAPPED:
        return option.outcome, option.reason
    if context.kind == "checkpoint":
        return _without_counterpart(target)
    if option.methods and context.method not in option.methods:
        return Outcome.NOT_NEEDED, f"applies to {' and '.join(option.methods)} only"
    if context.kind == "engine" and target.startswith(_BUILD):
        return Outcome.NOT_NEEDED, "the engine is prebuilt"
    return None


def _without_counterpart(target: str) -> tuple[Outcome, str] | None:
    if target.startswith(f"{_BUILD}quantization."):
        return Outcome.UNSUPPORTED, "a checkpoint is served with its own quantization"
    if target.startswith(_BUILD):
        return Outcome.NOT_NEEDED, "nothing is built from a checkpoint"
    key = RUNTIME_KEYS.get(target.removeprefix("runtime."))
    if key and key.unused:
        return Outcome.NOT_NEEDED, key.unused
    if key and key.refused:
        return Outcome.UNSUPPORTED, f"it {key.refused}"
    return None


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
