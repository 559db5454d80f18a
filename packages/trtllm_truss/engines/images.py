"""NVIDIA's Triton images: the TensorRT-LLM release in each, and the driver it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import Release, holds, read_table, release

_IMAGE = "nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


_IMAGE_NAME = re.compile(r"(?:^|/)tritonserver:([0-9]{2}\.[0-9]{2})-trtllm-python-py3(?:@|$)")


SYSTEM_PYTHON = "/usr/bin/python3"


IMAGE_ENVIRONMENT = "/opt/venv-tritonserver"
"""The virtual environment with TensorRT-LLM's Python package, in images that have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One release of Triton's image; `releases/images.toml` explains the columns."""

    tag: str
    tensorrt_llm: str
    cuda: str | None = None
    driver: str | None = None
    tensorrt: str | None = None
    python: str
    has_environment: bool = False
    foreign_tensorrt: bool = False
    pinned: bool = False
    source: str

    @property
    def name(self) -> str:
        return _IMAGE.format(tag=self.tag)

    @property
    def minimum_driver(self) -> Release | None:
        """The first driver that runs the image's CUDA without forward compatibility."""
        return None if self.cuda is None else minimum_driver(self.cuda)

    @property
    def environment(self) -> str | None:
        """The virtual environment with TensorRT-LLM; None if the system's Python has it."""
        return IMAGE_ENVIRONMENT if self.has_environment else None

    @property
    def python_executable_path(self) -> str:
        """The Python for `base_image.python_executable_path`.

        Truss installs its server's packages into that Python, numpy below 2 among them. In the
        virtual environment they would overwrite TensorRT-LLM's packages, so that environment is
        never used; `machine.runtime` finds it for the processes that need TensorRT-LLM.
        """
        return SYSTEM_PYTHON

    @property
    def loads_engines(self) -> bool:
        return holds("serves_engines", self.tensorrt_llm) and not self.foreign_tensorrt

    @property
    def documented(self) -> bool:
        """True if NVIDIA's table has this row."""
        return self.tensorrt is not None


IMAGES = read_table("images", "images", Image, key="tag")
"""Oldest first."""


PINNED_IMAGE = next(image for image in IMAGES if image.pinned)


PINNED_VERSION = PINNED_IMAGE.tensorrt_llm


@dataclass(frozen=True, slots=True)
class MinimumDriver:
    """The first driver that runs a major release of CUDA."""

    cuda: str
    driver: str
    source: str


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The image chosen for an engine.

    Attributes:
        image: the best match.
        exact: True if its version is exactly the engine's.
    """

    image: Image
    exact: bool

    def __str__(self) -> str:
        image = self.image
        if not self.exact:
            return f"{image.name} (TensorRT-LLM {image.tensorrt_llm}, the nearest available)"
        if not image.documented:
            return f"{image.name} (older than NVIDIA's compatibility table, which starts at 24.04)"
        return image.name


def minimum_driver(cuda: str) -> Release | None:
    """Return the first driver that runs a CUDA release, by CUDA's minor-version compatibility."""
    major = cuda.split(".")[0]
    rows = read_table("images", "drivers", MinimumDriver, key="cuda")
    return next((release(row.driver) for row in rows if row.cuda == major), None)


def image_for(version: str) -> ImageChoice:
    """Choose the newest image with exactly an engine's TensorRT-LLM version, or the nearest one.

    Of a release's images, only those with its own TensorRT count.

    The nearest one is an image with the same numbers (``0.12.0`` for ``0.12.0.dev2024080600``),
    then the newest one below, then the oldest of all.
    """
    wanted = release(version)
    images = [image for image in IMAGES if image.loads_engines]
    exact = [image for image in images if image.tensorrt_llm == version]
    same = [image for image in images if release(image.tensorrt_llm) == wanted]
    below = [image for image in images if release(image.tensorrt_llm) < wanted]
    return ImageChoice((exact or same or below or images[:1])[-1], exact=bool(exact))


def find_image(name: str) -> Image | None:
    """Look up an image by its name; None for an image outside the table."""
    match = _IMAGE_NAME.search(name)
    return find_tag(match[1]) if match else None


def find_tag(tag: str) -> Image | None:
    """Look up an image by its month, ``YY.MM``."""
    return next((image for image in IMAGES if image.tag == tag), None)


def version_in(image_name: str) -> str | None:
    """Look up the TensorRT-LLM version of an image; None for an image outside the table."""
    image = find_image(image_name)
    return None if image is None else image.tensorrt_llm


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True, slots=True)
class BaseImage:
    """The base image of a container.

    Attributes:
        image: `base_image.image`; None for Truss's own image.
        reason: why this image was chosen, as a sentence.
        python: `python_version` in config.yaml, such as ``py312``.
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
    """Return the image that the user specified.

    Raises:
        SettingsError: it is not an image's name.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(f"--image is {name!r}; name an image such as {PINNED_IMAGE.name}.")
    known = find_image(name)
    nearest = known or PINNED_IMAGE
    version = f"; it has TensorRT-LLM {known.tensorrt_llm}" if known else ""
    reason = f"specified by --image{version}."
    return BaseImage(name, reason, _python(nearest), nearest.python_executable_path)


def newest_image() -> BaseImage:
    """Return NVIDIA's newest image."""
    image = IMAGES[-1]
    reason = f"TensorRT-LLM {image.tensorrt_llm}, the newest in a Triton image."
    return known_image(image, reason)


def builder_image(given: str | None) -> BaseImage:
    """Return the image for an engine that the Truss builds.

    Raises:
        SettingsError: `given` is not an image's name.
    """
    if given is not None:
        return given_image(given)
    version = PINNED_IMAGE.tensorrt_llm
    return known_image(PINNED_IMAGE, f"TensorRT-LLM {version} builds and serves the engine.")


def _python(image: Image) -> str:
    return f"py{image.python.replace('.', '')}"
