"""The LLM API's samplers by TensorRT-LLM version: selection and supported parameters.

There are two samplers. The C++ runtime's supports penalties, bad words, min-p and seeds, but not
alternatives of a token. The PyTorch sampler supports them from late in 1.3; before, it accepts and
ignores them, and in 1.0 it also ignores the temperature, and `top_k` in combination with `top_p`.
Sources in NVIDIA/TensorRT-LLM:

- 1.0: ``docs/source/features/sampling.md`` of 1.0.0: temperature, top-k, top-p and penalties need
  ``enable_trtllm_sampler``; otherwise ``TorchSampler._process_requests`` of
  ``tensorrt_llm/_torch/pyexecutor/sampler.py`` takes the likeliest token, unless
  ``enable_mixed_sampler`` is set (pull request 6451).
- With speculation: ``docs/source/features/feature-combination-matrix.md`` of 1.2.1: two-model
  drafting needs the PyTorch sampler. Drafting within the model brings its own sampler, which
  supports temperature, top-k and top-p only (pull request 17701): it fails a step that asks for log
  probabilities (``MTPSampler.update_requests``, near 1.0 to 1.2) and drops all other parameters.
- The other releases: the facts about samplers in ``releases/facts.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.releases import FACTS, dotted, holds
from trtllm_truss.request_fields import SAMPLING

CPP_SAMPLER = "TRTLLMSampler"

SPECULATION = "speculative_config"
_NAME = "sampler_type"
_CPP_OF_1_0, _MIXED_OF_1_0 = "enable_trtllm_sampler", "enable_mixed_sampler"
_SAMPLED = "allow_advanced_sampling"
_WITHOUT_MODEL = ("NGram", "AUTO", "Auto")
_DRAFT_MODELS = ("DraftTarget", "Draft_Target")
_OF_TWO_MODELS = ("eagle3_one_model", "mtp_eagle_one_model")


def sampler_arguments(version: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that choose a sampler where `arguments` leaves the choice open.

    Many clients send penalties, and many models' `generation_config.json` contains them.
    """
    if version is None:
        return {}
    speculates = bool(arguments.get(SPECULATION))
    if not holds("samplers_have_names", version):
        return {_MIXED_OF_1_0 if speculates else _CPP_OF_1_0: True}
    if not holds("torch_sampler_has_penalties", version) and not speculates:
        return {_NAME: CPP_SAMPLER}
    return {}


def drafts_within(version: str | None, arguments: Mapping[str, Any]) -> bool:
    """Return True if drafts are made and tokens chosen within the model's own step.

    Source: ``spec_dec_mode`` of the drafting classes, tensorrt_llm/llmapi/llm_args.py of 1.2.1.
    """
    drafts = arguments.get(SPECULATION)
    if not drafts or drafts.get("decoding_type") in _WITHOUT_MODEL:
        return False
    if drafts.get("decoding_type") in _DRAFT_MODELS:
        return holds("draft_models_within", version, unknown=False)
    return all(drafts.get(name, True) for name in _OF_TWO_MODELS)


def is_cpp_sampler(arguments: Mapping[str, Any], version: str | None = None) -> bool:
    """Return True if arguments choose the C++ sampler."""
    if arguments.get(_CPP_OF_1_0) or arguments.get(_NAME) == CPP_SAMPLER:
        return True
    if version is None or arguments.get(_NAME, "auto") != "auto" or arguments.get(SPECULATION):
        return False
    beams = (arguments.get("max_beam_width") or 1) > 1
    return holds("auto_sampler_of_beams_is_cpp" if beams else "auto_sampler_is_cpp", version)


def why_greedy(version: str, arguments: Mapping[str, Any]) -> str | None:
    """Return why every request gets the likeliest token regardless of its parameters, if so.

    The first word is the argument at fault.
    """
    outcome = f"TensorRT-LLM {version} then returns the likeliest tokens for every request,"
    outcome += "whatever its temperature"
    if drafts_within(version, arguments):
        if not holds("drafts_sample", version):
            return (
                f"{SPECULATION} drafts within the model, and {outcome}; remove it, choose NGram, "
                f"or use an image with {dotted(FACTS['drafts_sample'].since[:2])}."
            )
        if not arguments[SPECULATION].get(_SAMPLED, True):
            return f"{SPECULATION}.{_SAMPLED} is off, and {outcome}; remove it."
    chosen = arguments.get(_CPP_OF_1_0) or arguments.get(_MIXED_OF_1_0)
    if not holds("samplers_have_names", version) and not chosen:
        return f"{_CPP_OF_1_0} is off, and {outcome}; remove it, or set {_MIXED_OF_1_0}: true."
    return None


def honours_penalties(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if penalties and bad words have an effect."""
    if drafts_within(version, arguments):
        return False
    return holds("torch_sampler_has_penalties", version) or is_cpp_sampler(arguments, version)


def lacking_fields(version: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of sampling fields that the sampler drops for some values at least."""
    lacks = {
        "min_p": not honours_min_p(version, arguments),
        "temperature": not honours_temperature(version, arguments),
    }
    if not honours_penalties(version, arguments):
        lacks |= {row.name: True for row in SAMPLING if row.effect == "penalty"}
    return frozenset(name for name, is_lacking in lacks.items() if is_lacking)


def honours_seeds(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if equal seeds give equal output."""
    if drafts_within(version, arguments):
        return holds("drafts_have_seeds", version)
    return holds("torch_sampler_has_seeds", version) or is_cpp_sampler(arguments, version)


def honours_min_p(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if `min_p` limits the candidate tokens.

    All modes of the C++ sampler except drafting and beam search have it: ``DecodingMode`` of
    cpp/include/tensorrt_llm/executor/types.h and layers/samplingLayer.cpp, near 0.20. The sampler
    of drafting within the model refuses it (pull request 16590).
    """
    if drafts_within(version, arguments):
        return False
    return is_cpp_sampler(arguments, version) or holds("torch_sampler_has_min_p", version)


def honours_temperature(version: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if temperatures other than 0 and 1, and `top_k` with `top_p`, have an effect."""
    if drafts_within(version, arguments):
        return True
    return is_cpp_sampler(arguments, version) or holds("torch_sampler_has_temperature", version)


def reports_alternatives(version: str | None, arguments: Mapping[str, Any]) -> bool:
    """Return True if the sampler reports the likeliest other tokens."""
    return not (drafts_within(version, arguments) or is_cpp_sampler(arguments, version))
