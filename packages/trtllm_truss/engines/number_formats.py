"""Number formats of weights, activations and KV cache, and the GPUs that have them.

Sources: ``tensorrt_llm/quantization/mode.py`` (names) and the hardware support matrix in the
documentation of NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.gpus import ComputeCapability

MINIMUM_CAPABILITY: dict[str, ComputeCapability] = {
    "BF16": (8, 0),
    "FP8": (8, 9),
    "block-scaled FP8": (9, 0),
    "MXFP4": (9, 0),
    "MXFP8": (10, 0),
    "FP4": (10, 0),
}
"""The first compute capability with a format; formats of all GPUs are left out."""

_FORMATS = {
    "bfloat16": "BF16",
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A8_AWQ"), "FP8"),
    "FP8_BLOCK_SCALES": "block-scaled FP8",
    **{"W4A16_MXFP4": "MXFP4", "MXFP8": "MXFP8"},
    **dict.fromkeys(("NVFP4", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8"), "FP4"),
}

KNOWN_QUANTIZATIONS = frozenset(_FORMATS) | {
    *("INT8", "INT4", "W8A16", "W4A16", "W4A16_AWQ", "W8A16_GPTQ", "W4A16_GPTQ"),
    *("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"),
    *("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"),
    *("W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "MIXED_PRECISION"),
}
"""Names of weight and KV-cache quantizations."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Number formats of weights, activations and KV cache.

    Attributes:
        dtype: type of unquantized weights and activations, such as ``float16``.
        algorithm: TensorRT-LLM's name of the weights' quantization, such as ``W4A16_AWQ``; None
            without one. The old schema has only bit flags and yields ``FP8``, ``INT8`` or ``INT4``.
        kv_cache: ``INT8``, ``FP8`` or ``NVFP4``; None for a cache of `dtype`.
    """

    dtype: str
    algorithm: str | None = None
    kv_cache: str | None = None


def number_formats(quantization: Quantization) -> tuple[str, ...]:
    """Return the keys of `MINIMUM_CAPABILITY` for an engine, each once."""
    names = (quantization.dtype, quantization.algorithm or "", quantization.kv_cache or "")
    return tuple(dict.fromkeys(_FORMATS[name] for name in names if name in _FORMATS))
