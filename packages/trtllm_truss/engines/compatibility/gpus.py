"""Compatibility of an engine with the GPUs of config.yaml and of this machine.

Sources of the number formats: ``tensorrt_llm/quantization/mode.py`` (names) and the hardware
support matrix in the documentation of NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from trtllm_truss.engines.accelerators import (
    ACCELERATORS,
    Accelerator,
    AcceleratorRequest,
    parse_accelerator,
)
from trtllm_truss.engines.checkpoint.architectures import ARCHITECTURES
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.gpus import ComputeCapability, Gpu
from trtllm_truss.engines.inspection import EngineDescription, EngineKind
from trtllm_truss.engines.tensorrt_llm_config import Quantization

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


def check_gpus(engine: EngineDescription, host: HostInfo, nodes: int = 1) -> Iterator[Diagnostic]:
    """Yield mismatches; an engine of the CPU needs no GPU.

    Args:
        engine: the engine.
        host: this one of the hosts.
        nodes: hosts that share the engine's ranks evenly.
    """
    spec = host.accelerator
    request = None if spec is None else parse_accelerator(spec)
    key = host.accelerator_key
    if engine.kind is EngineKind.CPU:
        if spec is not None:
            yield warning(
                "accelerator_unused",
                f"config.yaml: resources.{key} is {spec}, but the engine runs on the CPU; "
                "remove it.",
            )
        return
    gpus = host.gpus
    accelerator = None if request is None else request.accelerator
    if request is not None:
        yield from _request(engine, request, nodes, key)
    if gpus is not None:
        yield from _count(engine, len(gpus), nodes)
    if accelerator is not None:
        yield from _other_gpu(accelerator, gpus or (), key)
    for name, capability in _places(accelerator, gpus or ()).items():
        yield from _target(engine, name, capability)
        yield from _number_formats(engine, name, capability)
        yield from _architecture(engine, name, capability)


def _request(
    engine: EngineDescription, request: AcceleratorRequest, nodes: int, key: str
) -> Iterator[Diagnostic]:
    world, each = engine.world_size, engine.world_size // nodes
    if request.count != each:
        fitting = request.name if each == 1 else f"{request.name}:{each}"
        yield error(
            "accelerator_count",
            f"config.yaml: resources.{key} asks for {request.count} of {request.name}, but "
            f"the engine {_made(engine)} for {world} (tensor × pipeline parallelism)"
            f"{_on(nodes)}; set it to {fitting}.",
        )
    if request.accelerator is None:
        close = get_close_matches(request.name.upper(), ACCELERATORS, n=1, cutoff=0.5)
        hint = (
            f"did you mean {close[0]}"
            if close
            else f"did you mean one of {', '.join(ACCELERATORS)}"
        )
        yield warning(
            "accelerator_unknown",
            f"config.yaml: resources.{key} names {request.name}, which this release does "
            f"not know, so nothing is compared with it; {hint}?",
        )


def _count(engine: EngineDescription, visible: int, nodes: int) -> Iterator[Diagnostic]:
    world, each = engine.world_size, engine.world_size // nodes
    if visible < each:
        yield error(
            "gpus_missing",
            f"the engine {_made(engine)} for {world} GPU(s){_on(nodes)} and {visible} are visible "
            f"here; run it on a machine with {each}, or {_remake(engine)} it for fewer.",
        )


def _on(nodes: int) -> str:
    return f" on {nodes} hosts" if nodes > 1 else ""


def _made(engine: EngineDescription) -> str:
    return "was built" if engine.checkpoint is None else "is configured"


def _remake(engine: EngineDescription) -> str:
    return "build" if engine.checkpoint is None else "configure"


def _other_gpu(accelerator: Accelerator, gpus: Sequence[Gpu], key: str) -> Iterator[Diagnostic]:
    others = sorted({gpu.name for gpu in gpus if not accelerator.matches(gpu)})
    if others:
        yield warning(
            "accelerator_differs",
            f"config.yaml: resources.{key} names {accelerator.name}, but this machine "
            f"has {' and '.join(others)}; results of this check may not hold there.",
        )


def _places(accelerator: Accelerator | None, gpus: Sequence[Gpu]) -> dict[str, ComputeCapability]:
    """Return the compute capability of each kind of GPU that may run the engine, by name."""
    places = {gpu.name: gpu.compute_capability for gpu in gpus}
    if accelerator is not None and not any(accelerator.matches(gpu) for gpu in gpus):
        places[accelerator.name] = accelerator.compute_capability
    return places


def _target(
    engine: EngineDescription, name: str, capability: ComputeCapability
) -> Iterator[Diagnostic]:
    target = engine.target_gpu
    if target is not None and target.compute_capability != capability:
        yield error(
            "gpu_not_the_builders",
            f"the engine was built on {target.name} (compute capability "
            f"{_dotted(target.compute_capability)}) and does not load on {name} "
            f"({_dotted(capability)}); rebuild it on {name}, or serve it on the kind of GPU "
            "that built it.",
        )


def _number_formats(
    engine: EngineDescription, name: str, capability: ComputeCapability
) -> Iterator[Diagnostic]:
    quantization = engine.number_formats
    used = () if quantization is None else number_formats(quantization)
    for number_format in used:
        minimum = MINIMUM_CAPABILITY[number_format]
        if capability < minimum:
            yield error(
                "gpu_too_old",
                f"the engine computes in {number_format}, which needs compute capability "
                f"{_dotted(minimum)}, and {name} has {_dotted(capability)}; use a newer GPU, or "
                f"{_other_format(engine)}.",
            )


def _other_format(engine: EngineDescription) -> str:
    if engine.checkpoint is None:
        return "build the engine with another quantization"
    return "name a checkpoint with another quantization"


def _architecture(
    engine: EngineDescription, name: str, capability: ComputeCapability
) -> Iterator[Diagnostic]:
    architecture = engine.checkpoint.architecture if engine.checkpoint else ""
    known = ARCHITECTURES.get(architecture)
    minimum = known.minimum_capability if known else None
    if minimum is not None and capability < minimum:
        yield error(
            "gpu_too_old",
            f"{architecture} needs compute capability {_dotted(minimum)}, and {name} has "
            f"{_dotted(capability)}; use a newer GPU.",
        )


def _dotted(capability: ComputeCapability) -> str:
    return f"{capability[0]}.{capability[1]}"


def number_formats(quantization: Quantization) -> tuple[str, ...]:
    """Return the keys of `MINIMUM_CAPABILITY` for an engine, each once."""
    names = (quantization.dtype, quantization.algorithm or "", quantization.kv_cache or "")
    return tuple(dict.fromkeys(_FORMATS[name] for name in names if name in _FORMATS))
