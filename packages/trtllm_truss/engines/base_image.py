"""The base image of an engine's container."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_truss.engines.versions import IMAGES, PINNED_IMAGE, Image, find_image
from trtllm_truss.errors import SettingsError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True, slots=True)
class BaseImage:
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
    def section(self) -> dict[str, str]:
        """The section `base_image` of config.yaml; empty for Truss's own image."""
        if self.image is None or self.executable is None:
            return {}
        return {"image": self.image, "python_executable_path": self.executable}


def known_image(image: Image, reason: str) -> BaseImage:
    """Return one of NVIDIA's images."""
    driver, usual = image.minimum_driver, PINNED_IMAGE.minimum_driver
    if driver and usual and driver > usual:
        reason += f" Its CUDA {image.cuda} needs NVIDIA's driver {'.'.join(map(str, driver))}."
    return BaseImage(image.name, reason, _python(image), image.python_executable_path)


def given_image(name: str) -> BaseImage:
    """Return the image that the user names.

    Raises:
        SettingsError: it is no image's name.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(f"--image is {name!r}; name an image such as {PINNED_IMAGE.name}.")
    known = find_image(name)
    nearest = known or PINNED_IMAGE
    version = f"; it has TensorRT-LLM {known.tensorrt_llm}" if known else ""
    reason = f"named by --image{version}."
    return BaseImage(name, reason, _python(nearest), nearest.python_executable_path)


def newest_image() -> BaseImage:
    """Return NVIDIA's newest image."""
    image = IMAGES[-1]
    reason = f"TensorRT-LLM {image.tensorrt_llm}, the newest in a Triton image."
    return known_image(image, reason)


def builder_image(given: str | None) -> BaseImage:
    """Return the image of an engine that the Truss builds.

    Raises:
        SettingsError: `given` is no image's name.
    """
    if given is not None:
        return given_image(given)
    version = PINNED_IMAGE.tensorrt_llm
    return known_image(PINNED_IMAGE, f"TensorRT-LLM {version} builds and serves the engine.")


def _python(image: Image) -> str:
    return f"py{image.python.replace('.', '')}"
