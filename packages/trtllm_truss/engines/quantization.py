"""Number formats of weights, activations and KV cache, which differ by GPU."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.releases import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A number format that not all GPUs support.

    `releases/number_formats.toml` explains the columns.
    """

    name: str
    minimum_capability: ComputeCapability
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownQuantization:
    """A type or quantization by TensorRT-LLM's name; the same file explains the columns."""

    name: str
    format: str = ""
    cache_bits: float = 0
    source: str


MINIMUM_CAPABILITY = {
    row.name: row.minimum_capability for row in read_table("number_formats", "formats", Format)
}
"""The first compute capability that supports a format.

Formats that all GPUs support are omitted.
"""


QUANTIZATIONS = {
    row.name: row for row in read_table("number_formats", "quantizations", KnownQuantization)
}


_UNKNOWN_BITS = 16


@dataclass(frozen=True, slots=True)
class Quantization:
    """Number formats of weights, activations and KV cache.

    Attributes:
        dtype: type of unquantized weights and activations, such as ``float16``.
        algorithm: TensorRT-LLM's name of the weights' quantization, such as ``W4A16_AWQ``; None for
            unquantized weights. The old schema has only bit flags and yields ``FP8``, ``INT8`` or
            ``INT4``.
        kv_cache: ``INT8``, ``FP8`` or ``NVFP4``; None for a cache of `dtype`.
    """

    dtype: str
    algorithm: str | None = None
    kv_cache: str | None = None


def number_formats(quantization: Quantization) -> tuple[str, ...]:
    """Return the engine's keys of `MINIMUM_CAPABILITY`, each once."""
    names = (quantization.dtype, quantization.algorithm or "", quantization.kv_cache or "")
    formats = (QUANTIZATIONS[name].format for name in names if name in QUANTIZATIONS)
    return tuple(dict.fromkeys(filter(None, formats)))


def bits(dtype: str) -> float:
    """Return the size in bits of a number of a type; 16 for an unknown type."""
    known = QUANTIZATIONS.get(dtype)
    return known.cache_bits if known is not None and known.cache_bits else _UNKNOWN_BITS


def cache_bits(kv_cache: str | None, dtype: str) -> float:
    """Return the bits per number in the KV cache; those of `dtype` unless it is quantized."""
    known = QUANTIZATIONS.get(kv_cache or "")
    return known.cache_bits if known is not None and known.cache_bits else bits(dtype)
