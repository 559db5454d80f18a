"""The number format of a checkpoint's weights, by ``config.json`` and ``hf_quant_config.json``.

Source: ``tensorrt_llm/_torch/model_config.py`` in NVIDIA/TensorRT-LLM. A method without a branch
there is loaded as if the weights were not quantized: the start fails at a tensor's shape, or the
answers are noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.engines.number_formats import Quantization
from trtllm_truss.releases.versions import Release

QUANTIZATION_FILE = "hf_quant_config.json"
"""ModelOpt's description of quantized weights, beside a checkpoint's ``config.json``."""

_FIRST: Release = (1, 0)
_LATE: Release = (1, 3)
_FP8_BLOCK = [128, 128]
_MODELOPT = "ModelOpt"
_MAX_NAME = 128
_NAMES = {"awq": "AutoAWQ", "gptq": "AutoGPTQ", "bitsandbytes": "bitsandbytes"}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A number format.

    Attributes:
        quantization: in TensorRT-LLM's names.
        name: for messages; empty for weights that are not quantized.
        since: the first TensorRT-LLM that reads it; None if none does.
    """

    quantization: Quantization
    name: str = ""
    since: Release | None = _FIRST


def weight_format(checkpoint: Checkpoint, described: object = None) -> WeightFormat:
    """Determine the format.

    Args:
        checkpoint: the contents of ``config.json``.
        described: the parsed `QUANTIZATION_FILE`, if there is one; it wins.
    """
    section = checkpoint.quantization
    method = (_text(section.get("quant_method")) or "").lower()
    if isinstance(described, Mapping):
        inner = described.get("quantization")
        return _modelopt(checkpoint, inner if isinstance(inner, Mapping) else described, _FIRST)
    if not section:
        return WeightFormat(Quantization(checkpoint.dtype))
    if method == "modelopt":
        return _modelopt(checkpoint, section, _LATE)
    if method == "fp8":
        if section.get("weight_block_size") == _FP8_BLOCK:
            return _known(checkpoint, "FP8_BLOCK_SCALES", "FP8 in blocks of 128×128", _FIRST)
        return _unknown(checkpoint, "FP8 without blocks of 128×128 (quant_method fp8)")
    if method == "mxfp4":
        return _known(checkpoint, "W4A16_MXFP4", "MXFP4", (1, 1))
    if method in ("mxfp8", "nvfp4"):
        return _known(checkpoint, method.upper(), method.upper(), _LATE)
    if method == "compressed-tensors":
        return _known(checkpoint, None, method, _LATE)
    name = _NAMES.get(method, f"quant_method {method or 'unnamed'}")
    return _unknown(checkpoint, name if method not in _NAMES else f"{name} (quant_method {method})")


def _modelopt(checkpoint: Checkpoint, section: Mapping[str, Any], since: Release) -> WeightFormat:
    algorithm = _text(section.get("quant_algo"))
    cache = _text(section.get("kv_cache_quant_algo"))
    return WeightFormat(
        Quantization(checkpoint.dtype, algorithm, cache), f"{_MODELOPT} {algorithm or ''}", since
    )


def _known(
    checkpoint: Checkpoint, algorithm: str | None, name: str, since: Release
) -> WeightFormat:
    return WeightFormat(Quantization(checkpoint.dtype, algorithm), name, since)


def _unknown(checkpoint: Checkpoint, name: str) -> WeightFormat:
    return WeightFormat(Quantization(checkpoint.dtype), name, None)


def _text(value: object) -> str | None:
    return value[:_MAX_NAME] if isinstance(value, str) and value else None
