"""Combinations that a TensorRT-LLM release lacks: of arguments, models and GPUs.

TensorRT-LLM refuses few of these combinations itself; others give wrong tokens, or turn a feature
off that its checks of requests go on to count on. Sources in NVIDIA/TensorRT-LLM:

- Adapters and CUDA graphs: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1 says no.
  A graph, captured without adapters, is replayed for every step after the prompt's
  (``_torch/pyexecutor/model_engine.py``, ``forward``). Pull request 8279, after 1.3.0rc0, adds
  them.
- Beams: ``docs/source/features/sampling.md`` of 1.0.0 and 1.1.0; 1.2.1's asks for neither.
- Guides and speculation: ``create_py_executor`` of ``_torch/pyexecutor/py_executor_creator.py`` of
  1.0 and 1.1; the matrix of 1.2.1 says yes.
- Chunked prefill and block reuse by model: the matrices of
  ``docs/source/models/supported-models.md`` of 1.1.0 and 1.2.1. That of text decides for
  a model in both (Llama 4).
- Chunked prefill of latent attention: ``create_py_executor`` turns it off, with a warning, on other
  GPUs than 10.0 (1.0), 9.0 and 10.0 (1.1), 9.0, 10.0, 10.3 and 12.0 (1.2).
- Sizes of CUDA graphs: ``_generate_cuda_graph_batch_sizes`` of ``llmapi/llm_args.py``, 1.2.1:
  without padding 1 to 32, 64 and 128 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.facts import holds
from trtllm_truss.releases.versions import Release, exact_release
from trtllm_truss.settings.llm_args import SECTION

CHUNKED = "enable_chunked_prefill"
_GRAPHS, _OVERLAP_OFF = "cuda_graph_config", "disable_overlap_scheduler"
_GUIDES = "guided_decoding_backend"
_COMPLETE: Release = (1, 2)
"""The first release that combines beams, guides and GPT-OSS with the rest."""

_UNCHUNKED: dict[str, Release | None] = {
    "GptOssForCausalLM": _COMPLETE,
    "HCXVisionForCausalLM": None,
    "LlavaLlamaModel": None,
}
_UNREUSED: dict[str, Release | None] = {
    "GptOssForCausalLM": _COMPLETE,
    "HCXVisionForCausalLM": _COMPLETE,
    "LlavaLlamaModel": None,
}
"""Models by the first release with the feature; None for no known one."""

_CHUNKS_OF_LATENTS: tuple[tuple[Release, tuple[ComputeCapability, ...]], ...] = (
    ((1, 2), ((9, 0), (10, 0), (10, 3), (12, 0))),
    ((1, 1), ((9, 0), (10, 0))),
    ((1, 0), ((10, 0),)),
)
_ONE_MODEL_DRAFTS = ("MTP", "Eagle3", "Eagle")


def chunks(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False for a model without chunked prefill in a release."""
    return _has(_UNCHUNKED, checkpoint, version)


def reuses(checkpoint: Checkpoint | None, version: str | None) -> bool:
    """Return False for a model without block reuse in a release, as one with recurrent layers."""
    recurrent = checkpoint is not None and checkpoint.recurrent
    return not recurrent and _has(_UNREUSED, checkpoint, version)


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
    if checkpoint is not None and checkpoint.latent_size and not _chunks_latents(version, gpu):
        arguments[CHUNKED] = False
    if _is_before(version, _COMPLETE):
        _check_guides(arguments, str(version))
    if reason := _reason_against_graphs(arguments, version):
        _require(arguments, _GRAPHS, None, reason)
    elif arguments.get(_GRAPHS, {}) == {} and not (checkpoint and checkpoint.recurrent):
        arguments[_GRAPHS] = {
            "enable_padding": True,
            "max_batch_size": arguments["max_batch_size"],
        }
    if _has_beams(arguments) and _is_before(version, _COMPLETE):
        _require(arguments, _OVERLAP_OFF, True, f"beams need it in TensorRT-LLM {version}")


def _reason_against_graphs(arguments: Mapping[str, Any], version: str | None) -> str | None:
    adapters = arguments.get("lora_config") or arguments.get("enable_lora")
    if adapters and not graphs_apply_adapters(version):
        return "CUDA graphs before TensorRT-LLM 1.3 ignore LoRA adapters after the first token"
    if _has_beams(arguments) and _is_before(version, _COMPLETE):
        return f"beams need it in TensorRT-LLM {version}"
    return None


def _check_guides(arguments: Mapping[str, Any], version: str) -> None:
    drafts = arguments.get("speculative_config")
    if not (drafts and arguments.get(_GUIDES)):
        return
    of_one_model = drafts.get("decoding_type") in _ONE_MODEL_DRAFTS
    if _is_before(version, (1, 1)) or (of_one_model and drafts.get("eagle3_one_model", True)):
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{_GUIDES} is set with speculative_config, which "
            f"TensorRT-LLM {version} does not combine; remove one of them, or use an image with "
            "1.2.",
            param=_GUIDES,
        )


def _chunks_latents(version: str | None, gpu: ComputeCapability | None) -> bool:
    if version is None or gpu is None:
        return True
    here = exact_release(version)
    return gpu in next((gpus for since, gpus in _CHUNKS_OF_LATENTS if since <= here), ())


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


def _is_before(version: str | None, since: Release) -> bool:
    return version is not None and exact_release(version) < since


def _has(
    without: Mapping[str, Release | None], checkpoint: Checkpoint | None, version: str | None
) -> bool:
    if checkpoint is None or checkpoint.architecture not in without:
        return True
    since = without[checkpoint.architecture]
    return since is not None and not _is_before(version, since)


def _has_beams(arguments: Mapping[str, Any]) -> bool:
    return (arguments.get("max_beam_width") or 1) > 1
