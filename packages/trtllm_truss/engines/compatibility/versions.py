"""Compatibility of the engine's TensorRT-LLM version with the image and the runtime.

An engine runs only on the TensorRT that built it, and its plugins tie it to the TensorRT-LLM
release, so versions must be equal. Versions with the same numbers (``0.17.0`` and
``0.17.0.post1``) cause only a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig
from trtllm_truss.engines.versions import (
    IMAGE_ENVIRONMENT,
    Image,
    find_image,
    image_for,
    minimum_driver,
)
from trtllm_truss.releases.versions import Release, release


def check_versions(config: EngineConfig, host: HostInfo) -> Iterator[Diagnostic]:
    """Yield at most one diagnostic each for image and runtime."""
    name, runtime = host.image, host.runtime_version
    image = None if name is None else find_image(name)
    if image is not None:
        where = f"config.yaml's image {image.tag}"
        yield from _compare(config, image.tensorrt_llm, "image_version_mismatch", where)
    if runtime is not None and (image is None or runtime != image.tensorrt_llm):
        yield from _compare(config, runtime, "version_mismatch", "the installed runtime")


def check_container(host: HostInfo) -> Iterator[Diagnostic]:
    """Yield at most one diagnostic each for driver and Python of config.yaml's image."""
    image = None if host.image is None else find_image(host.image)
    if host.driver_fits is not None:
        yield from _check_installed_cuda(host)
    elif image is not None:
        yield from _check_driver(image, host.gpus or ())
    if image is not None:
        yield from _check_python(image, host.python)


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


def _check_python(image: Image, python: str | None) -> Iterator[Diagnostic]:
    wanted = image.python_executable_path
    in_environment = python is not None and python.startswith(f"{IMAGE_ENVIRONMENT}/")
    if in_environment and image.environment is None:
        yield error(
            "python_missing",
            f"config.yaml: base_image.python_executable_path is {python}, which image {image.tag} "
            f"does not have; set it to {wanted}.",
        )
    elif image.environment is not None and (python is None or in_environment):
        found = f"is {python}" if python else "is not set, so that it is the first on PATH"
        yield warning(
            "python_of_tensorrt_llm",
            f"config.yaml: base_image.python_executable_path {found}; Truss would install its "
            f"server's packages into {image.environment}, among those of TensorRT-LLM. Set it to "
            f"{wanted}; Triton's Python models run in {image.environment} all the same.",
        )


def _compare(config: EngineConfig, found: str, code: str, where: str) -> Iterator[Diagnostic]:
    built = config.assumed_version
    if found == built:
        return
    fits = image_for(built)
    by = f"TensorRT-LLM {built}" if config.version else f"TensorRT-LLM 0.5 to 0.7 (about {built})"
    message = (
        f"the engine was built by {by}, but {where} is TensorRT-LLM {found}; set base_image.image "
        f"to {fits}, or rebuild the engine with {found}."
    )
    same_numbers = release(found) == release(built)
    yield warning(code, message) if same_numbers else error(code, message)
