"""Limits of the target GPU, if it is known."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.builder.planning.target import Target
from trtllm_truss.engines.compatibility.gpus import MINIMUM_CAPABILITY
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.quantization import Awq

_VOLTA: ComputeCapability = (7, 0)
_VOLTA_UNTIL = (0, 16)
_HOPPER: ComputeCapability = (9, 0)


def gpu_problems(settings: Settings, build: Build, target: Target) -> Iterator[str]:
    """Yield each problem of the build with its remedy."""
    ranks = settings.world_size
    if target.gpu_count is not None and target.gpu_count < ranks:
        yield (
            f"the build needs {ranks} GPUs (tensor_parallelism × pipeline_parallelism), but only "
            f"{target.gpu_count} are available; set resources.accelerator to {ranks}, or lower "
            "either"
        )
    capability = target.compute_capability
    if capability is None:
        return
    for name, minimum, remedy in _needs(build):
        if capability < minimum:
            yield (
                f"{name} needs compute capability {_dotted(minimum)}, but {target.gpu} has "
                f"{_dotted(capability)}; {remedy}"
            )
    if capability == _VOLTA and target.release >= _VOLTA_UNTIL:
        yield f"TensorRT-LLM {target.version} has no kernels for {target.gpu}; use a newer GPU"


def _needs(build: Build) -> Iterator[tuple[str, ComputeCapability, str]]:
    quantization, fp8 = build.quantization, MINIMUM_CAPABILITY["FP8"]
    if quantization is not None and quantization.method == "fp8":
        yield "build.quantization.method fp8", fp8, "choose another method"
    if isinstance(quantization, Awq) and quantization.format == "w4a8_awq":
        yield "build.quantization.format w4a8_awq", fp8, "set int4_awq"
    if build.kv_cache_dtype == "fp8":
        yield "build.kv_cache_dtype fp8", fp8, "set int8 or remove it"
    if build.use_fp8_context_fmha:
        yield "build.use_fp8_context_fmha", _HOPPER, "remove it"
    if build.dtype == "bfloat16":
        yield "build.dtype bfloat16", MINIMUM_CAPABILITY["BF16"], "set float16"


def _dotted(capability: ComputeCapability) -> str:
    return ".".join(map(str, capability))
