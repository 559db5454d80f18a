"""Engines on GPUs, and their comparison with the GPUs of config.yaml and of this machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpus import (
    ACCELERATORS,
    Accelerator,
    AcceleratorRequest,
    ComputeCapability,
    Gpu,
    meant_accelerator,
    parse_accelerator,
)
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import (
    IMAGE_ENVIRONMENT,
    Image,
    find_image,
    image_for,
    minimum_driver,
    newest_image,
    version_in,
)
from trtllm_truss.engines.quantization import (
    MINIMUM_CAPABILITY,
    QUANTIZATIONS,
    Quantization,
    number_formats,
)
from trtllm_truss.releases import FACTS, Release, dotted, holds, release
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class GpuEngine(Engine):
    """An engine on GPUs, run by TensorRT-LLM."""

    uses_gpus = True
    made: ClassVar[str]
    """The verb after "the engine" that tells what fixed its number of GPUs."""
    remake: ClassVar[str]
    """The imperative of that verb."""
    other_format: ClassVar[str]
    """The remedy for a number format that a GPU does not support, in the imperative."""

    @property
    @abstractmethod
    def number_formats(self) -> Quantization:
        """Its quantization by TensorRT-LLM's names."""

    def minimum_capabilities(self) -> Iterator[tuple[str, ComputeCapability]]:
        """Yield further requirements: the subject of a sentence and a compute capability."""
        yield from ()

    def image_to_run(self, given: str | None) -> str:
        """Return an image that runs the engine, for messages.

        Args:
            given: `base_image.image`, used if it may contain the engine's release.
        """
        built = self.built_version
        if given and (built is None or version_in(given) in (None, built)):
            return given
        return str(newest_image().image) if built is None else image_for(built).image.name

    def check_nodes(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        """Yield mismatches between the ranks and several hosts."""
        nodes, ranks = settings.node_count, self.world_size
        if nodes == 1:
            return
        version = host.version_for(self.built_version)
        if ranks % nodes:
            yield error(
                "nodes_mismatch",
                f"config.yaml: model_metadata.nodes is {nodes}, but the engine has {ranks} ranks "
                "(tensor × pipeline parallelism), which that many hosts cannot share evenly; set "
                f"nodes to a divisor of {ranks}.",
            )
        elif not holds("several_hosts", version):
            yield error(
                "nodes_version",
                f"config.yaml: model_metadata.nodes is {nodes}, but TensorRT-LLM "
                f"{version} places ranks on GPUs as if on one host; build the engine "
                f"with {dotted(FACTS['several_hosts'].since)} or newer.",
            )

    def check_container(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        """Yield mismatches with config.yaml's image and with the GPUs."""
        yield from _check_image(host, in_runtime=self.in_python_of_runtime)
        yield from _unknown_quantization(self.number_formats)
        yield from _check_gpus(self, host, settings.node_count)
        yield from _check_http(settings, host.version_for(self.built_version))


_OLDEST_TESTED: ComputeCapability = (8, 0)


def _check_http(settings: Settings, version: str | None) -> Iterator[Diagnostic]:
    serving = settings.serving
    if serving.http_port is not None and not holds("restricts_http", version):
        key = "triton_http_port" if serving.triton_http_port else "triton_native"
        yield error(
            "http_unrestricted",
            f"config.yaml: model_metadata.serving.{key} opens Triton's HTTP endpoint, and the "
            f"Triton of TensorRT-LLM {version} cannot close parts of it (--http-restricted-api); "
            "remove the setting, or build the engine with "
            f"{dotted(FACTS['restricts_http'].since)} or newer.",
        )


def _check_gpus(engine: GpuEngine, host: HostInfo, nodes: int) -> Iterator[Diagnostic]:
    request = parse_accelerator(host.accelerator) if host.accelerator is not None else None
    gpus = host.gpus
    accelerator = None if request is None else request.accelerator
    if request is not None:
        yield from _request(engine, request, nodes, host.accelerator_key)
    if gpus is not None:
        yield from _count(engine, len(gpus), nodes)
    if accelerator is not None:
        yield from _other_gpu(accelerator, gpus or (), host.accelerator_key)
    for name, capability in _places(accelerator, gpus or ()).items():
        yield from _target(engine, name, capability)
        too_old = [*_number_formats(engine, name, capability), *_model(engine, name, capability)]
        yield from too_old or _age(name, capability, host.version_for(engine.built_version))


def _request(
    engine: GpuEngine, request: AcceleratorRequest, nodes: int, key: str
) -> Iterator[Diagnostic]:
    world, each = engine.world_size, engine.world_size // nodes
    meant = meant_accelerator(request.name)
    name = request.name if request.accelerator else meant or request.name
    fitting = name if each == 1 else f"{name}:{each}"
    if request.count != each:
        yield error(
            "accelerator_count",
            f"config.yaml: resources.{key} asks for {request.count} of {request.name}, but "
            f"the engine {engine.made} for {world} (tensor × pipeline parallelism)"
            f"{_on(nodes)}; set it to {fitting}.",
        )
    if request.accelerator is None:
        hint = f"did you mean {fitting if meant else 'one of ' + ', '.join(ACCELERATORS)}"
        yield warning(
            "accelerator_unknown",
            f"config.yaml: resources.{key} names {request.name}, which this release does not "
            f"know, so nothing is compared with it; {hint}?",
        )


def _count(engine: GpuEngine, visible: int, nodes: int) -> Iterator[Diagnostic]:
    world, each = engine.world_size, engine.world_size // nodes
    if visible < each:
        yield error(
            "gpus_missing",
            f"the engine {engine.made} for {world} GPU(s){_on(nodes)} and {visible} are visible "
            f"here; run it on a machine with {each}, or {engine.remake} it for fewer.",
        )


def _on(nodes: int) -> str:
    return f" on {nodes} hosts" if nodes > 1 else ""


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


def _target(engine: GpuEngine, name: str, capability: ComputeCapability) -> Iterator[Diagnostic]:
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
    engine: GpuEngine, name: str, capability: ComputeCapability
) -> Iterator[Diagnostic]:
    for number_format in number_formats(engine.number_formats):
        minimum = MINIMUM_CAPABILITY[number_format]
        if capability < minimum:
            yield error(
                "gpu_too_old",
                f"the engine computes in {number_format}, which needs compute capability "
                f"{_dotted(minimum)}, and {name} has {_dotted(capability)}; use a newer GPU, or "
                f"{engine.other_format}.",
            )


def _model(engine: GpuEngine, name: str, capability: ComputeCapability) -> Iterator[Diagnostic]:
    for subject, minimum in engine.minimum_capabilities():
        if capability < minimum:
            yield error(
                "gpu_too_old",
                f"{subject} needs compute capability {_dotted(minimum)}, and {name} has "
                f"{_dotted(capability)}; use a newer GPU.",
            )


def _age(name: str, capability: ComputeCapability, version: str) -> Iterator[Diagnostic]:
    if capability < _OLDEST_TESTED and holds("needs_ampere", version):
        yield warning(
            "gpu_untested",
            f"{name} has compute capability {_dotted(capability)}, and NVIDIA tests TensorRT-LLM "
            f"{version} on {_dotted(_OLDEST_TESTED)} and newer only; use A10G or a newer GPU.",
        )


def _dotted(capability: ComputeCapability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _check_image(host: HostInfo, *, in_runtime: bool) -> Iterator[Diagnostic]:
    """Yield at most one diagnostic each for the driver and the Python of config.yaml's image.

    Args:
        in_runtime: Triton's Python models of this engine run in TensorRT-LLM's Python.
    """
    image = None if host.image is None else find_image(host.image)
    if host.driver_fits is not None:
        yield from _check_installed_cuda(host)
    elif image is not None:
        yield from _check_driver(image, host.gpus or ())
    if image is not None:
        yield from _check_python(image, host.python, in_runtime=in_runtime)


def _check_installed_cuda(host: HostInfo) -> Iterator[Diagnostic]:
    if host.driver_fits is False:
        yield error(
            "driver_too_old",
            f"the NVIDIA driver here is {host.driver_version}, too old for CUDA "
            f"{host.cuda_version} here, and the image's own user-mode driver does not run on it; "
            f"{_needed(minimum_driver(host.cuda_version or ''))}use an image with an older CUDA.",
        )


def _check_driver(image: Image, gpus: Sequence[Gpu]) -> Iterator[Diagnostic]:
    minimum = image.minimum_driver
    for driver in sorted({gpu.driver_version for gpu in gpus}):
        if minimum is not None and release(driver) < minimum:
            yield warning(
                "driver_too_old",
                f"the NVIDIA driver here is {driver}, and image {image.tag} has CUDA {image.cuda}; "
                "it starts only if the image's own user-mode driver runs on the one here (forward "
                f"compatibility, data-center GPUs only); {_needed(minimum)}use an image with an "
                "older CUDA.",
            )


def _needed(minimum: Release | None) -> str:
    return f"update the driver to {'.'.join(map(str, minimum))}, or " if minimum else ""


def _check_python(image: Image, python: str | None, *, in_runtime: bool) -> Iterator[Diagnostic]:
    wanted = image.python_executable_path
    in_environment = python is not None and python.startswith(f"{IMAGE_ENVIRONMENT}/")
    if in_environment and image.environment is None:
        yield error(
            "python_missing",
            f"config.yaml: base_image.python_executable_path is {python}, which image {image.tag} "
            f"does not have; set it to {wanted}.",
        )
    elif image.environment is not None and (python is None or in_environment):
        models = (
            f"; Triton's Python models run in {image.environment} all the same"
            if in_runtime
            else ""
        )
        found = f"is {python}" if python else "is not set, so that it is the first on PATH"
        yield warning(
            "python_of_tensorrt_llm",
            f"config.yaml: base_image.python_executable_path {found}; Truss would install its "
            f"server's packages into {image.environment}, among those of TensorRT-LLM. Set it to "
            f"{wanted}{models}.",
        )


def _unknown_quantization(quantization: Quantization) -> Iterator[Diagnostic]:
    unknown = [
        name
        for name in (quantization.algorithm, quantization.kv_cache)
        if name is not None and name not in QUANTIZATIONS
    ]
    if unknown:
        yield warning(
            "quantization_unknown",
            f"the engine's quantization {' and '.join(unknown)} is unknown to this release, so "
            "neither its GPUs nor its KV cache can be checked; look for a newer release of "
            "trtllm-truss.",
        )
