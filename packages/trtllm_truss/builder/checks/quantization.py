"""Conflicts of quantization with the family, the split or other settings."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.builder.planning.families import FAMILIES, Family
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.quantization import Awq

_OTHER_FLOAT = {"smoothquant": "fp8", "fp8": "int8"}
"""Methods and their incompatible KV-cache types: INT8 and FP8 kernels cannot be mixed."""


def quantization_problems(
    settings: Settings, build: Build, checkpoint: Checkpoint, family: Family
) -> Iterator[str]:
    """Yield each problem of the quantization with its remedy."""
    method = build.quantization.method if build.quantization else None
    cache = build.kv_cache_dtype
    if method is not None and method not in family.quantizations:
        yield (
            f"build.quantization.method {method} is not supported for {family.name}; use one of "
            f"{', '.join(sorted(family.quantizations))} ({method} works with {_families(method)})"
        )
    if cache is not None and cache not in family.kv_cache_dtypes:
        choices = " or ".join(sorted(family.kv_cache_dtypes))
        remedy = f"set {choices}" if choices else "remove it"
        yield f"build.kv_cache_dtype {cache} is not supported for {family.name}; {remedy}"
    if cache is not None and _OTHER_FLOAT.get(method or "") == cache:
        other = "int8" if cache == "fp8" else "fp8"
        yield (
            f"build.quantization.method {method} and build.kv_cache_dtype {cache} are "
            f"incompatible; set kv_cache_dtype to {other}, or choose another method"
        )
    if build.load_by_shard and (method == "smoothquant" or cache == "int8"):
        yield "build.load_by_shard cannot calibrate; remove it"
    if build.use_fp8_context_fmha and method != "fp8":
        yield "build.use_fp8_context_fmha needs build.quantization.method fp8; remove it"
    if isinstance(build.quantization, Awq):
        yield from _block_problems(settings, build.quantization, checkpoint)


def quantized_already(checkpoint: Checkpoint) -> str:
    return (
        f"the checkpoint's weights are quantized already ({checkpoint.quantized_by}); name the "
        "original checkpoint in build.checkpoint_repository and set build.quantization"
    )


def _block_problems(settings: Settings, awq: Awq, checkpoint: Checkpoint) -> Iterator[str]:
    tensor = settings.tensor_parallelism
    for name, size in (("hidden", checkpoint.hidden_size), ("inner", checkpoint.inner_size)):
        if size % tensor == 0 and (size // tensor) % awq.block_size:
            yield (
                f"build.quantization.block_size {awq.block_size} does not divide the model's "
                f"{name} size on one of {tensor} GPUs ({size // tensor}); lower either"
            )


def _families(method: str) -> str:
    return ", ".join(family.name for family in FAMILIES if method in family.quantizations)
