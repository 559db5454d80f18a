"""The engine's TensorRT-LLM version against the image and the runtime that would load it.

An engine runs only on the TensorRT that built it, and its plugins tie it to the TensorRT-LLM
release, so versions must be equal. Two versions with the same numbers (``0.17.0`` and
``0.17.0.post1``) are let through with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.engines.diagnostics import Finding, error, warning
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig
from trtllm_truss.engines.versions import Image, find_image, image_for
from trtllm_truss.literals import release


def version_disagreements(config: EngineConfig, surroundings: Surroundings) -> Iterator[Finding]:
    """Yields at most one finding for the image in config.yaml, the runtime here and the driver."""
    name, runtime = surroundings.image, surroundings.runtime_version
    image = None if name is None else find_image(name)
    if image is not None:
        where = f"config.yaml's image {image.tag}"
        yield from _compare(config, image.tensorrt_llm, "image_version_mismatch", where)
        yield from _driver(image, surroundings.gpus or ())
    if runtime is not None and (image is None or runtime != image.tensorrt_llm):
        yield from _compare(config, runtime, "version_mismatch", "the runtime here")


def _driver(image: Image, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    least = image.least_driver
    for driver in sorted({gpu.driver_version for gpu in gpus}):
        if least is not None and release(driver) < least:
            yield warning(
                "driver_too_old",
                f"the NVIDIA driver here is {driver}, but image {image.tag} has CUDA {image.cuda}, "
                f"which wants {'.'.join(map(str, least))}; update the driver, or take an image of "
                "an older CUDA.",
            )


def _compare(config: EngineConfig, found: str, code: str, where: str) -> Iterator[Finding]:
    built = config.assumed_version
    if found == built:
        return
    fits = image_for(built)
    by = f"TensorRT-LLM {built}" if config.version else f"TensorRT-LLM 0.5 to 0.7 (about {built})"
    sentence = (
        f"the engine was built by {by}, but {where} is TensorRT-LLM {found}; set base_image.image "
        f"to {fits}, or build the engine again with {found}."
    )
    same_numbers = release(found) == release(built)
    yield warning(code, sentence) if same_numbers else error(code, sentence)
