"""The engine against the GPUs that config.yaml asks for and those that are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from trtllm_truss.engines.accelerators import (
    ACCELERATORS,
    Accelerator,
    AcceleratorRequest,
    parse_accelerator,
)
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.engines.diagnostics import Finding, error, warning
from trtllm_truss.engines.gpus import ComputeCapability, Gpu
from trtllm_truss.engines.inspection import EngineDescription, EngineKind
from trtllm_truss.engines.number_formats import LEAST_CAPABILITY, number_formats


def gpu_disagreements(engine: EngineDescription, surroundings: Surroundings) -> Iterator[Finding]:
    """Yields what does not fit; an engine of the CPU needs no GPU and asks for none."""
    spec = surroundings.accelerator
    request = None if spec is None else parse_accelerator(spec)
    if engine.kind is EngineKind.CPU:
        if spec is not None:
            yield warning(
                "accelerator_unused",
                f"config.yaml: resources.accelerator is {spec}, but the engine runs on the CPU; "
                "remove it.",
            )
        return
    gpus = surroundings.gpus
    accelerator = None if request is None else request.accelerator
    if request is not None:
        yield from _request(engine, request)
    if gpus is not None:
        yield from _count(engine, len(gpus))
    if accelerator is not None:
        yield from _other_gpu(accelerator, gpus or ())
    for name, capability in _places(accelerator, gpus or ()).items():
        yield from _target(engine, name, capability)
        yield from _number_formats(engine, name, capability)


def _request(engine: EngineDescription, request: AcceleratorRequest) -> Iterator[Finding]:
    world = engine.world_size
    if request.count != world:
        fitting = request.name if world == 1 else f"{request.name}:{world}"
        yield error(
            "accelerator_count",
            f"config.yaml: resources.accelerator asks for {request.count} of {request.name}, but "
            f"the engine was built for {world} (tensor × pipeline parallelism); set it to "
            f"{fitting}.",
        )
    if request.accelerator is None:
        close = get_close_matches(request.name.upper(), ACCELERATORS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}" if close else f"known are {', '.join(ACCELERATORS)}"
        yield warning(
            "accelerator_unknown",
            f"config.yaml: resources.accelerator names {request.name}, which is not known here, so "
            f"nothing is compared with it; {hint}?",
        )


def _count(engine: EngineDescription, visible: int) -> Iterator[Finding]:
    world = engine.world_size
    if visible < world:
        yield error(
            "gpus_missing",
            f"the engine was built for {world} GPU(s) and {visible} can be seen here; run it where "
            f"there are {world}, or build it for fewer.",
        )


def _other_gpu(accelerator: Accelerator, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    others = sorted({gpu.name for gpu in gpus if not accelerator.matches(gpu)})
    if others:
        yield warning(
            "accelerator_differs",
            f"config.yaml: resources.accelerator names {accelerator.name}, but here is "
            f"{' and '.join(others)}; what fits here may not fit there.",
        )


def _places(accelerator: Accelerator | None, gpus: Sequence[Gpu]) -> dict[str, ComputeCapability]:
    """Kinds of GPUs the engine may meet, by name."""
    places = {gpu.name: gpu.compute_capability for gpu in gpus}
    if accelerator is not None and not any(accelerator.matches(gpu) for gpu in gpus):
        places[accelerator.name] = accelerator.compute_capability
    return places


def _target(
    engine: EngineDescription, name: str, capability: ComputeCapability
) -> Iterator[Finding]:
    target = engine.target_gpu
    if target is not None and target.compute_capability != capability:
        yield error(
            "gpu_not_the_builders",
            f"the engine was built on {target.name} (compute capability "
            f"{_dotted(target.compute_capability)}) and does not load on {name} "
            f"({_dotted(capability)}); build it again on {name}, or serve it where it was built.",
        )


def _number_formats(
    engine: EngineDescription, name: str, capability: ComputeCapability
) -> Iterator[Finding]:
    used = () if engine.config is None else number_formats(engine.config.quantization)
    for number_format in used:
        least = LEAST_CAPABILITY[number_format]
        if capability < least:
            yield error(
                "gpu_too_old",
                f"the engine computes in {number_format}, which needs compute capability "
                f"{_dotted(least)}, and {name} has {_dotted(capability)}; take a newer GPU, or "
                "build the engine with another quantization.",
            )


def _dotted(capability: ComputeCapability) -> str:
    return f"{capability[0]}.{capability[1]}"
