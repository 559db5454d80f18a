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
from trtllm_truss.engines.versions import Image, find_image, image_for
from trtllm_truss.literals import release


def check_versions(config: EngineConfig, host: HostInfo) -> Iterator[Diagnostic]:
    """Yield at most one diagnostic each for image, runtime and driver."""
    name, runtime = host.image, host.runtime_version
    image = None if name is None else find_image(name)
    if image is not None:
        where = f"config.yaml's image {image.tag}"
        yield from _compare(config, image.tensorrt_llm, "image_version_mismatch", where)
        yield from check_driver(image, host.gpus or ())
    if runtime is not None and (image is None or runtime != image.tensorrt_llm):
        yield from _compare(config, runtime, "version_mismatch", "the installed runtime")


def check_driver(image: Image, gpus: Sequence[Gpu]) -> Iterator[Diagnostic]:
    """Yield a warning for each driver below the first that runs the image's CUDA."""
    minimum = image.minimum_driver
    for driver in sorted({gpu.driver_version for gpu in gpus}):
        if minimum is not None and release(driver) < minimum:
            yield warning(
                "driver_too_old",
                f"the NVIDIA driver here is {driver}, but image {image.tag} has CUDA {image.cuda}, "
                f"which needs {'.'.join(map(str, minimum))}; update the driver, or use an image "
                "with an older CUDA.",
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
