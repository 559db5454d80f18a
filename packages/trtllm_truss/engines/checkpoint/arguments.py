"""The arguments of ``tensorrt_llm.LLM``: `runtime` for a checkpoint, and what completes it.

`llm_args`, and the arguments that other keys become, are checked by name, type and range before
anything starts: TensorRT-LLM refuses an unknown one itself, but only in the container.

A TensorRT-LLM release lacks some combinations of arguments, models and GPUs. It refuses few of them
itself; others give wrong tokens, or turn a feature off that its checks of requests go on to count
on. Sources in NVIDIA/TensorRT-LLM:

- Adapters and CUDA graphs: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1 says no.
  A graph, captured without adapters, is replayed for every step after the prompt's
  (``_torch/pyexecutor/model_engine.py``, ``forward``). Pull request 8279, after 1.3.0rc0, adds
  them.
- Beams, guides and speculation, chunked prefill and block reuse: the sources of the rows.
- Sizes of CUDA graphs: ``_generate_cuda_graph_batch_sizes`` of ``llmapi/llm_args.py``, 1.2.1:
  without padding 1 to 32, 64 and 128 only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_truss.engines.checkpoint.adapters import lora_config
from trtllm_truss.engines.checkpoint.samplers import (
    SPECULATION,
    sampler_arguments,
    why_greedy,
)
from trtllm_truss.engines.checkpoint.weights import (
    chunks_latents,
    chunks_prompts,
    reuses_blocks,
)
from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.engines.host import ComputeCapability
from trtllm_truss.engines.model_config import Adapter, Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import (
    FACTS,
    Release,
    describe_releases,
    dotted,
    holds,
    read_table,
    rows_for,
)
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import SECTION, ParameterValue, RuntimeOptions
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


CHUNKED = "enable_chunked_prefill"
_GRAPHS, _OVERLAP_OFF = "cuda_graph_config", "disable_overlap_scheduler"
_GUIDES = "guided_decoding_backend"
_GUIDES_AND_DRAFTS = "guides_combine_with_drafts"


def chunks(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False for a model without chunked prefill in a release."""
    return checkpoint is None or chunks_prompts(checkpoint.architecture, version)


def reuses(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False for a model without block reuse in a release, as one with recurrent layers."""
    if checkpoint is None:
        return True
    return not checkpoint.recurrent and reuses_blocks(checkpoint.architecture, version)


def graphs_apply_adapters(version: str | None) -> bool:
    """Return False if CUDA graphs of a release ignore adapters, or if it is unknown."""
    return holds("graphs_apply_adapters", version, unknown=False)


def combine(
    arguments: dict[str, Any],
    checkpoint: Checkpoint | None,
    version: str | None,
    gpu: ComputeCapability | None,
) -> None:
    """Complete arguments so that they go together, in place.

    Args:
        arguments: the user's, and the defaults.
        checkpoint: the model; None if unknown.
        version: TensorRT-LLM's; None for any.
        gpu: the compute capability; None if unknown.

    Raises:
        SettingsError: the user's own do not go together.
    """
    if checkpoint is not None and checkpoint.latent_size and not chunks_latents(version, gpu):
        arguments[CHUNKED] = False
    _check_guides(arguments, version)
    if reason := _reason_against_graphs(arguments, version):
        _require(arguments, _GRAPHS, None, reason)
    elif arguments.get(_GRAPHS, {}) == {} and not (checkpoint and checkpoint.recurrent):
        arguments[_GRAPHS] = {
            "enable_padding": True,
            "max_batch_size": arguments["max_batch_size"],
        }
    if _has_beams(arguments) and not holds("beams_combine", version):
        _require(arguments, _OVERLAP_OFF, True, f"beams need it in TensorRT-LLM {version}")


def _reason_against_graphs(arguments: Mapping[str, Any], version: str | None) -> str | None:
    adapters = arguments.get("lora_config") or arguments.get("enable_lora")
    if adapters and not graphs_apply_adapters(version):
        since = dotted(FACTS["graphs_apply_adapters"].since[:2])
        return f"CUDA graphs before TensorRT-LLM {since} ignore LoRA adapters after the first token"
    if _has_beams(arguments) and not holds("beams_combine", version):
        return f"beams need it in TensorRT-LLM {version}"
    return None


def _check_guides(arguments: Mapping[str, Any], version: str | None) -> None:
    if not (arguments.get(SPECULATION) and arguments.get(_GUIDES)):
        return
    if not holds(_GUIDES_AND_DRAFTS, version):
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{_GUIDES} is set with {SPECULATION}, which "
            f"TensorRT-LLM {version} does not combine; remove one of them, or use an image with "
            f"{dotted(FACTS[_GUIDES_AND_DRAFTS].since)}.",
            param=_GUIDES,
        )


def _require(arguments: dict[str, Any], name: str, value: object, reason: str) -> None:
    """Set an argument; refuse another value of the user."""
    given = arguments.setdefault(name, value)
    if given != value:
        shown = "null" if value is None else str(value).lower()
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{SECTION}.{name} (or the key of runtime that "
            f"sets it) must be {shown}: {reason}. Remove it.",
            param=f"{SECTION}.{name}",
        )


def _has_beams(arguments: Mapping[str, Any]) -> bool:
    return (arguments.get("max_beam_width") or 1) > 1


DEFAULT_MAX_SEQ_LEN = 32_768
"""Limit of the default context; the whole context of a long model needs `max_seq_len`."""

DEFAULT_MAX_BATCH_SIZE = 256
DEFAULT_MAX_NUM_TOKENS = 8192

_RUNTIME = "config.yaml: model_metadata.runtime"
_DEGREES = {
    "tensor_parallel_size": "tensor_parallelism",
    "pipeline_parallel_size": "pipeline_parallelism",
}


def complete_arguments(
    checkpoint: Checkpoint,
    context_tokens: int,
    settings: Settings,
    version: str | None = None,
    adapters: Sequence[Adapter] = (),
    gpu: ComputeCapability | None = None,
) -> tuple[dict[str, Any], int]:
    """Return the arguments of a checkpoint, and the tokens of its longest prompt.

    Args:
        context_tokens: limit of prompt and generated tokens together.
        version: TensorRT-LLM's; None if unknown.
        adapters: those of `lora_adapters`.
        gpu: the compute capability; None if unknown.

    Raises:
        SettingsError: a setting does not exist for a checkpoint, or contradicts another.
    """
    _refuse(settings.runtime)
    arguments = _defaults(checkpoint, context_tokens, settings, version)
    if adapters:
        arguments["lora_config"] = lora_config(adapters)
    given: dict[str, Any] = {}
    for name, value in _set_keys(settings.runtime).items():
        key = RUNTIME_KEYS[name]
        if key.argument:
            _put(given, key.argument, key.convert(value))
    _merge(arguments, given)
    _merge(arguments, parse_llm_args(settings.runtime.llm_args), given)
    _choose_sampler(arguments, version)
    combine(arguments, checkpoint, version, gpu)
    for argument, setting in _DEGREES.items():
        if arguments[argument] != getattr(settings, setting):
            raise SettingsError(
                f"{_RUNTIME}.{SECTION}.{argument} is {arguments[argument]}, but model_metadata."
                f"{setting} is {getattr(settings, setting)}; remove the former.",
                param=f"{SECTION}.{argument}",
            )
    longest = _longest_prompt(arguments)
    arguments.setdefault("max_input_len", longest)
    return arguments, longest


def unused_keys(settings: Settings) -> Iterator[Diagnostic]:
    """Yield a warning for each key of `runtime` without effect on a checkpoint."""
    for name in _set_keys(settings.runtime):
        if reason := RUNTIME_KEYS[name].unused:
            yield warning(
                "runtime_key_unused",
                f"{_RUNTIME}.{name} has no effect on a checkpoint: {reason}; remove it.",
            )


def _set_keys(runtime: RuntimeOptions) -> dict[str, ParameterValue]:
    fields = {name: getattr(runtime, name) for name in ("max_batch_size", "instance_count")}
    return {
        **{name: value for name, value in fields.items() if value is not None},
        **runtime.parameters,
    }


def _refuse(runtime: RuntimeOptions) -> None:
    for name in _set_keys(runtime):
        key = RUNTIME_KEYS.get(name)
        if key is None or key.refused:
            reason = key.refused if key else "has no counterpart for a checkpoint; remove it"
            raise SettingsError(f"{_RUNTIME}.{name} {reason}.", param=name)


def _defaults(
    checkpoint: Checkpoint, context_tokens: int, settings: Settings, version: str | None
) -> dict[str, Any]:
    """Return the arguments of a checkpoint without `runtime`.

    TensorRT-LLM would reserve for 2048 sequences of the model's whole context, and refuse prompts
    above `max_num_tokens`. Recurrent layers cannot reuse blocks, and refuse the default.
    """
    return {
        "tensor_parallel_size": settings.tensor_parallelism,
        "pipeline_parallel_size": settings.pipeline_parallelism,
        "max_batch_size": DEFAULT_MAX_BATCH_SIZE,
        "max_num_tokens": DEFAULT_MAX_NUM_TOKENS,
        "max_seq_len": min(context_tokens, DEFAULT_MAX_SEQ_LEN),
        "max_beam_width": 1,
        CHUNKED: chunks(checkpoint, version),
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.9,
            "enable_block_reuse": reuses(checkpoint, version),
        },
        **({"trust_remote_code": True} if settings.trust_remote_code else {}),
    }


def _choose_sampler(arguments: dict[str, Any], version: str | None) -> None:
    """Add the sampler, where `llm_args` chooses none.

    Raises:
        SettingsError: the chosen one ignores what requests ask for.
    """
    for name, value in sampler_arguments(version, arguments).items():
        arguments.setdefault(name, value)
    if version is not None and (reason := why_greedy(version, arguments)):
        argument = reason.split(maxsplit=1)[0]
        raise SettingsError(f"{_RUNTIME}.{SECTION}.{reason}", param=f"{SECTION}.{argument}")


def _put(arguments: dict[str, Any], path: str, value: Any) -> None:
    section, _, name = path.rpartition(".")
    (arguments.setdefault(section, {}) if section else arguments)[name] = value


def _merge(
    arguments: dict[str, Any],
    changes: Mapping[str, Any],
    mapped: Mapping[str, Any] | None = None,
    path: str = "",
) -> None:
    """Merge changes into nested arguments; refuse one that differs from a mapped key of `runtime`.

    Raises:
        SettingsError: both forms of a setting differ.
    """
    for name, value in changes.items():
        key = (mapped or {}).get(name)
        if isinstance(value, Mapping) and isinstance(arguments.get(name), dict):
            inner = key if isinstance(key, Mapping) else None
            _merge(arguments[name], value, inner, f"{path}{name}.")
        elif mapped and name in mapped and key != value:
            raise SettingsError(
                f"{_RUNTIME}.{SECTION}.{path}{name} is {value!r}, but the key of runtime that "
                f"sets the same argument makes it {key!r}; remove one of them.",
                param=f"{SECTION}.{path}{name}",
            )
        else:
            arguments[name] = dict(value) if isinstance(value, Mapping) else value


def _longest_prompt(arguments: Mapping[str, Any]) -> int:
    whole: int = arguments["max_seq_len"] - 1
    return whole if arguments[CHUNKED] else min(whole, arguments["max_num_tokens"])
