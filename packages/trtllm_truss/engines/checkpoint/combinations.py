"""Combinations that a TensorRT-LLM release lacks: of arguments, models and GPUs.

TensorRT-LLM refuses few of these combinations itself; others give wrong tokens, or turn a feature
off that its checks of requests go on to count on. Sources in NVIDIA/TensorRT-LLM:

- Adapters and CUDA graphs: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1 says no.
  A graph, captured without adapters, is replayed for every step after the prompt's
  (``_torch/pyexecutor/model_engine.py``, ``forward``). Pull request 8279, after 1.3.0rc0, adds
  them.
- Beams, guides and speculation, chunked prefill and block reuse: the sources of the rows.
- Sizes of CUDA graphs: ``_generate_cuda_graph_batch_sizes`` of ``llmapi/llm_args.py``, 1.2.1:
  without padding 1 to 32, 64 and 128 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.engines.checkpoint.architectures import (
    chunks_latents,
    chunks_prompts,
    reuses_blocks,
)
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.tables import FACTS, dotted, holds
from trtllm_truss.settings.runtime import SECTION

CHUNKED = "enable_chunked_prefill"
_GRAPHS, _OVERLAP_OFF = "cuda_graph_config", "disable_overlap_scheduler"
_GUIDES = "guided_decoding_backend"
_GUIDES_AND_ONE_MODEL = "guides_combine_with_speculation"
_ONE_MODEL_DRAFTS = ("MTP", "Eagle3", "Eagle")


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
    drafts = arguments.get("speculative_config")
    if not (drafts and arguments.get(_GUIDES)):
        return
    named = drafts.get("decoding_type") in _ONE_MODEL_DRAFTS
    of_one_model = named and drafts.get("eagle3_one_model", True)
    if not holds(_GUIDES_AND_ONE_MODEL if of_one_model else "guides_combine_with_drafts", version):
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{_GUIDES} is set with speculative_config, which "
            f"TensorRT-LLM {version} does not combine; remove one of them, or use an image with "
            f"{dotted(FACTS[_GUIDES_AND_ONE_MODEL].since)}.",
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
