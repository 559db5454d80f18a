"""Completion of a checkpoint by the settings: the arguments of ``tensorrt_llm.LLM``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtllm_truss.engines.adapter import Adapter
from trtllm_truss.engines.checkpoint.adapters import lora_config
from trtllm_truss.engines.checkpoint.combinations import CHUNKED, chunks, combine, reuses
from trtllm_truss.engines.checkpoint.llm_args import RUNTIME_KEYS, parse_llm_args
from trtllm_truss.engines.checkpoint.samplers import sampler_arguments, samples
from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import SECTION, ParameterValue, RuntimeOptions

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
        checkpoint: the model.
        context_tokens: limit of prompt and generated tokens together.
        settings: the operator's settings.
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
    if version is not None and not samples(version, arguments):
        raise SettingsError(
            f"{_RUNTIME}.{SECTION}.enable_trtllm_sampler is off, and TensorRT-LLM {version} then "
            "answers every request with the likeliest tokens, whatever its temperature; remove it, "
            "or set enable_mixed_sampler: true.",
            param=f"{SECTION}.enable_trtllm_sampler",
        )


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
