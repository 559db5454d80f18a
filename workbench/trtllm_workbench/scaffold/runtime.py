"""The image of an engine, and the packages that its container installs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_truss.artifacts.s3 import S3
from trtllm_truss.engines.inspection import EngineKind
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig
from trtllm_truss.engines.versions import (
    IMAGES,
    PINNED_IMAGE,
    find_image,
    image_for,
)
from trtllm_truss.errors import SettingsError

CPU_REQUIREMENT = "openvino-genai==2026.4.1.0"
S3_REQUIREMENT = "boto3>=1.36"

_CPU_PYTHON = "py312"
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The base of a container.

    Attributes:
        image: `base_image.image`; None is Truss's own.
        reason: why this image, as a sentence.
        python: `python_version` of config.yaml, such as ``py312``.
        executable: `python_executable_path`; None for Truss's own image.
    """

    image: str | None
    reason: str
    python: str
    executable: str | None = None

    @property
    def base_image(self) -> dict[str, str]:
        if self.image is None or self.executable is None:
            return {}
        return {"image": self.image, "python_executable_path": self.executable}


def choose_runtime(
    kind: EngineKind | None, config: EngineConfig | None, given: str | None
) -> Runtime:
    """Choose the newest image that serves an engine.

    Args:
        kind: the engine's; None for one that the Truss builds.
        config: the contents of a TensorRT-LLM engine's ``config.json``.
        given: an image's name, which is taken as it is.

    Raises:
        SettingsError: no Triton image has the engine's version, or `given` does not name an image.
    """
    if kind is EngineKind.CPU:
        if given is not None:
            raise SettingsError(f"--image is {given!r}, but the engine runs on the CPU; remove it.")
        reason = "Truss's own image: the engine runs on the CPU."
        return Runtime(None, reason, _CPU_PYTHON)
    is_checkpoint = kind is EngineKind.LLM_API
    if given is not None:
        return _given_runtime(given)
    if is_checkpoint:
        image = IMAGES[-1]
        reason = f"TensorRT-LLM {image.tensorrt_llm}, the newest in a Triton image."
    elif config is None:
        image = PINNED_IMAGE
        reason = f"TensorRT-LLM {image.tensorrt_llm} builds and serves the engine."
    else:
        built = config.assumed_version
        choice = image_for(built)
        image = choice.image
        if not choice.exact:
            raise SettingsError(
                f"the engine was built by TensorRT-LLM {built}, which no Triton image has; rebuild "
                f"it with {image.tensorrt_llm}, or name an image of yours with --image."
            )
        guessed = "" if config.version else " (inferred from its files)"
        reason = (
            f"the newest image with TensorRT-LLM {built}, which built the engine{guessed}; an "
            "engine runs on no other version."
        )
    driver, usual = image.minimum_driver, PINNED_IMAGE.minimum_driver
    if driver and usual and driver > usual:
        reason += f" Its CUDA {image.cuda} needs NVIDIA's driver {'.'.join(map(str, driver))}."
    python = f"py{image.python.replace('.', '')}"
    return Runtime(image.name, reason, python, image.python_executable_path)


def _given_runtime(name: str) -> Runtime:
    if not _IMAGE_NAME.fullmatch(name):
        raise SettingsError(f"--image is {name!r}; name an image such as {PINNED_IMAGE.name}.")
    known = find_image(name)
    nearest = known or PINNED_IMAGE
    python = f"py{nearest.python.replace('.', '')}"
    version = f"; it has TensorRT-LLM {known.tensorrt_llm}" if known else ""
    return Runtime(name, f"named by --image{version}.", python, nearest.python_executable_path)


def extra_requirements(repositories: list[str], *, on_cpu: bool) -> list[str]:
    """Return the lines to add to requirements.txt."""
    lines = [CPU_REQUIREMENT] if on_cpu else []
    if any(repository.startswith(S3) for repository in repositories):
        lines.append(S3_REQUIREMENT)
    return lines
