"""Number formats of each quantization, and the GPUs that support them.

Sources: ``tensorrt_llm/quantization/mode.py`` (names) and the hardware support matrix in the
documentation of NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.tensorrt_llm_config import Quantization

MINIMUM_CAPABILITY: dict[str, ComputeCapability] = {
    "BF16": (8, 0),
    "FP8": (8, 9),
    "block-scaled FP8": (9, 0),
    "FP4": (10, 0),
}
"""The first compute capability with a format; formats of all GPUs are left out."""

_FORMATS = {
    "bfloat16": "BF16",
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A8_AWQ"), "FP8"),
    "FP8_BLOCK_SCALES": "block-scaled FP8",
    **dict.fromkeys(("NVFP4", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8"), "FP4"),
}

KNOWN_QUANTIZATIONS = frozenset(_FORMATS) | {
    *("INT8", "INT4", "W8A16", "W4A16", "W4A16_AWQ", "W8A16_GPTQ", "W4A16_GPTQ", "W4A16_MXFP4"),
    *("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"),
    *("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"),
    *("W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "MIXED_PRECISION"),
}
"""Names of weight and KV-cache quantizations."""


def number_formats(quantization: Quantization) -> tuple[str, ...]:
    """Return the keys of `MINIMUM_CAPABILITY` for an engine, each once."""
    names = (quantization.dtype, quantization.algorithm or "", quantization.kv_cache or "")
    return tuple(dict.fromkeys(_FORMATS[name] for name in names if name in _FORMATS))
