"""The samplers of the LLM API by TensorRT-LLM version: which one is chosen, and what it honours.

There are two. The C++ runtime's has penalties, bad words and seeds, and no alternatives of a token.
The PyTorch one got them late in 1.3, and before accepts and ignores them. Sources in
NVIDIA/TensorRT-LLM:

- 1.0: ``docs/source/features/sampling.md`` of 1.0.0: temperature, top-k, top-p and penalties need
  ``enable_trtllm_sampler``; else ``TorchSampler._process_requests`` of
  ``tensorrt_llm/_torch/pyexecutor/sampler.py`` takes the likeliest token, unless
  ``enable_mixed_sampler`` is set (pull request 6451).
- 1.1 and 1.2: the release notes of 1.1 and ``SamplerType`` in ``llmapi/llm_args.py`` of 1.2.1:
  ``auto`` is the C++ sampler in 1.1, and in 1.2 only with beams.
- With speculation: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1: modes of one
  model bring a sampler of their own; NGram and DraftTarget need the PyTorch one.
- 1.3: pull requests 16485 (penalties, July 2026), 16052 (bad words, July 2026), 17172 (seeds,
  August 2026); 18232 (August 2026) removes the C++ sampler. The pre-release is concluded from these
  dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.releases.facts import holds
from trtllm_truss.releases.versions import Release, exact_release

CPP_SAMPLER = "TRTLLMSampler"

_NAMED: Release = (1, 1)
_AUTO_IS_CPP_UNTIL: Release = (1, 2)
_AUTO_IS_CPP_WITH_BEAMS_UNTIL: Release = (1, 3)
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
    if exact_release(version) < _NAMED:
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
    until = _AUTO_IS_CPP_WITH_BEAMS_UNTIL if beams else _AUTO_IS_CPP_UNTIL
    return _NAMED <= exact_release(version) < until


def samples(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return False if every request gets the likeliest token, whatever it asks for."""
    chosen = arguments.get(_CPP_OF_1_0) or arguments.get(_MIXED_OF_1_0)
    return exact_release(version) >= _NAMED or bool(chosen)


def honours_penalties(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if penalties and bad words have an effect."""
    return holds("torch_sampler_has_penalties", version) or is_cpp_sampler(arguments, version)


def honours_seeds(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if equal seeds give equal answers."""
    return holds("torch_sampler_has_seeds", version) or is_cpp_sampler(arguments, version)
