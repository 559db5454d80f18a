"""Derive the arguments of ``tensorrt_llm.LLM`` for a checkpoint from `runtime`.

A TensorRT-LLM release does not support some combinations of arguments, models and GPUs. It refuses
few of them itself; others give wrong tokens, or disable a feature that its request checks still
assume. Sources in NVIDIA/TensorRT-LLM:

Adapters and CUDA graphs: not supported according to
  ``docs/source/features/feature-combination-matrix.md`` of 1.2.1. A graph captured without adapters
  is replayed for every step after the prompt's (``_torch/pyexecutor/model_engine.py``,
  ``forward``). Pull request 8279, after 1.3.0rc0, adds support.
- Beams, guides and speculation, chunked prefill and block reuse: see the sources of the rows.
- Sizes of CUDA graphs: ``_generate_cuda_graph_batch_sizes`` of ``llmapi/llm_args.py``, 1.2.1:
  without padding 1 to 32, 64 and 128 only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_truss.engines.adapters import Adapter
from trtllm_truss.engines.checkpoint.adapters import lora_config
from trtllm_truss.engines.checkpoint.llm_args import doubtful_arguments, parse_llm_args
from trtllm_truss.engines.checkpoint.samplers import SPECULATION, sampler_arguments, why_greedy
from trtllm_truss.engines.checkpoint.weights import chunks_latents, chunks_prompts, reuses_blocks
from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import FACTS, dotted, holds, read_table
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import GUIDES, SECTION, ParameterValue, RuntimeOptions

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
        """Describe the conversion of the value; empty if nothing is converted."""
        return _CONVERSIONS[self.conversion][0]

    def convert(self, value: ParameterValue) -> Any:
        return _CONVERSIONS[self.conversion][1](value)


RUNTIME_KEYS = {row.name: row for row in read_table("checkpoint_keys", "keys", RuntimeKey)}
"""Every key that any release with the LLM API's PyTorch backend accepts."""

HANDLED_KEYS = frozenset(name for name, key in RUNTIME_KEYS.items() if key.handled)


CHUNKED = "enable_chunked_prefill"
_GRAPHS, _OVERLAP_OFF = "cuda_graph_config", "disable_overlap_scheduler"
_GUIDES_AND_DRAFTS = "guides_combine_with_drafts"


def chunks(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False if a release does not chunk the prefill of a model."""
    return checkpoint is None or chunks_prompts(checkpoint.architecture, version)


def reuses(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False if a release does not reuse a model's blocks, such as with recurrent layers."""
    if checkpoint is None:
        return True
    return not checkpoint.recurrent and reuses_blocks(checkpoint.architecture, version)


def graphs_apply_adapters(version: str | None) -> bool:
    """Return False if CUDA graphs of a release ignore adapters, or if the release is unknown."""
    return holds("graphs_apply_adapters", version, unknown=False)


def combine(
    arguments: dict[str, Any],
    checkpoint: Checkpoint | None,
    version: str | None,
    gpu: ComputeCapability | None,
) -> None:
    """Complete arguments in place so that they are compatible.

    Args:
        arguments: the user's arguments and the defaults.
        checkpoint: the model; None if unknown.
        version: version of TensorRT-LLM; None for any.
        gpu: the compute capability; None if unknown.

    Raises:
        SettingsError: the user's arguments are incompatible.
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


def lacks_guides(arguments: Mapping[str, Any], version: str | None) -> str:
    """Return why a release cannot use guided decoding with arguments; empty if it can.

    Returns:
        The end of a sentence about guided decoding.
    """
    if not arguments.get(SPECULATION) or holds(_GUIDES_AND_DRAFTS, version):
        return ""
    since = dotted(FACTS[_GUIDES_AND_DRAFTS].since)
    return f"goes with {SPECULATION} from TensorRT-LLM {since} on; this is {version}"


def _check_guides(arguments: Mapping[str, Any], version: str | None) -> None:
    if arguments.get(GUIDES) and lacks_guides(arguments, version):
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{GUIDES} is set with {SPECULATION}, which "
            f"TensorRT-LLM {version} does not combine; remove one of them, or use an image with "
            f"{dotted(FACTS[_GUIDES_AND_DRAFTS].since)}.",
            param=GUIDES,
        )


def _require(arguments: dict[str, Any], name: str, value: object, reason: str) -> None:
    """Set an argument; refuse a different value from the user."""
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
"""Maximum default context; set `max_seq_len` to use the whole context of a long model."""

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
    """Return a checkpoint's arguments and the tokens of its longest prompt.

    Args:
        context_tokens: limit of prompt and generated tokens together.
        version: version of TensorRT-LLM; None if unknown.
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
    _merge(arguments, parse_llm_args(settings.runtime.llm_args, version), given)
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


def unused_keys(settings: Settings, version: str | None) -> Iterator[Diagnostic]:
    """Yield a warning for each key of `runtime` without effect and for each doubtful argument."""
    for name in _set_keys(settings.runtime):
        if reason := RUNTIME_KEYS[name].unused:
            yield warning(
                "runtime_key_unused",
                f"{_RUNTIME}.{name} has no effect on a checkpoint: {reason}; remove it.",
            )
    yield from doubtful_arguments(settings.runtime.llm_args, version)


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
    """Return a checkpoint's arguments without `runtime`.

    TensorRT-LLM would reserve for 2048 sequences of the model's whole context, and refuse prompts
    above `max_num_tokens`. Recurrent layers cannot reuse blocks, so they refuse the default.
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
    """Add the sampler if `llm_args` does not choose one.

    Raises:
        SettingsError: the chosen sampler ignores request parameters.
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
        SettingsError: both forms of a setting are given and differ.
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
