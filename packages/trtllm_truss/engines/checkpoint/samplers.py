"""The samplers of the LLM API by TensorRT-LLM version: which one is chosen, and what it honours.

There are two. The C++ runtime's has penalties, bad words and seeds, and no alternatives of a token.
The PyTorch one got them late in 1.3, and before accepts and ignores them. Sources in
NVIDIA/TensorRT-LLM:

- 1.0: ``docs/source/features/sampling.md`` of 1.0.0: temperature, top-k, top-p and penalties need
  ``enable_trtllm_sampler``; else ``TorchSampler._process_requests`` of
  ``tensorrt_llm/_torch/pyexecutor/sampler.py`` takes the likeliest token, unless
  ``enable_mixed_sampler`` is set (pull request 6451).
- With speculation: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1: modes of one
  model bring a sampler of their own; NGram and DraftTarget need the PyTorch one.
- The other releases: the facts about samplers in ``releases/facts.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.releases import holds

CPP_SAMPLER = "TRTLLMSampler"

_SPECULATION = "speculative_config"
_NAME = "sampler_type"
_CPP_OF_1_0, _MIXED_OF_1_0 = "enable_trtllm_sampler", "enable_mixed_sampler"


def sampler_arguments(version: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that choose a sampler, for what `arguments` leave open.

    Penalties come with many clients, and with many models' `generation_config.json`.
    """
    if version is None:
        return {}
    speculates = bool(arguments.get(_SPECULATION))
    if not holds("samplers_have_names", version):
        return {_MIXED_OF_1_0 if speculates else _CPP_OF_1_0: True}
    if not holds("torch_sampler_has_penalties", version) and not speculates:
        return {_NAME: CPP_SAMPLER}
    return {}


def is_cpp_sampler(arguments: Mapping[str, Any], version: str | None = None) -> bool:
    """Return True if arguments choose the C++ sampler."""
    if arguments.get(_CPP_OF_1_0) or arguments.get(_NAME) == CPP_SAMPLER:
        return True
    if version is None or arguments.get(_NAME, "auto") != "auto" or arguments.get(_SPECULATION):
        return False
    beams = (arguments.get("max_beam_width") or 1) > 1
    return holds("auto_sampler_of_beams_is_cpp" if beams else "auto_sampler_is_cpp", version)


def samples(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return False if every request gets the likeliest token, whatever it asks for."""
    chosen = arguments.get(_CPP_OF_1_0) or arguments.get(_MIXED_OF_1_0)
    return holds("samplers_have_names", version) or bool(chosen)


def honours_penalties(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if penalties and bad words have an effect."""
    return holds("torch_sampler_has_penalties", version) or is_cpp_sampler(arguments, version)


def honours_seeds(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if equal seeds give equal answers."""
    return holds("torch_sampler_has_seeds", version) or is_cpp_sampler(arguments, version)
