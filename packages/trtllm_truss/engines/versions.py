"""TensorRT-LLM versions and the Triton images that run them, as data.

Source: ``docs/introduction/compatibility.md`` in triton-inference-server/server (the same page is
in NVIDIA's Triton user guide). It begins with 24.04; earlier rows come from the branches of
triton-inference-server/tensorrtllm_backend and have no driver or TensorRT version. For 24.09 and
25.04 the backend's build file names another TensorRT (10.3.0.26, 10.8.0.43) than the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_truss.releases.versions import Release, release

_IMAGE = "nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"
_IMAGE_NAME = re.compile(r"(?:^|/)tritonserver:([0-9]{2}\.[0-9]{2})-trtllm-python-py3(?:@|$)")

SYSTEM_PYTHON = "/usr/bin/python3"
IMAGE_ENVIRONMENT = "/opt/venv-tritonserver"
"""The virtual environment with TensorRT-LLM's Python package, in images that have one.

Source: ``dockerfile/Dockerfile.triton.trt_llm_backend`` in triton-inference-server/
tensorrtllm_backend, of March 2026.
"""

_ENVIRONMENT_SINCE = "26.03"
_MINIMUM_DRIVERS: dict[str, Release] = {"12": (525, 60, 13), "13": (580,)}


@dataclass(frozen=True, slots=True)
class Image:
    """One release of ``nvcr.io/nvidia/tritonserver`` with the TensorRT-LLM backend.

    Attributes:
        tag: the image's month, ``YY.MM``.
        tensorrt_llm: version of its engines.
        cuda: CUDA toolkit.
        driver: the NVIDIA driver it was released with; None before 24.04.
        tensorrt: TensorRT; None before 24.04.
        python: Python's minor release.
    """

    tag: str
    tensorrt_llm: str
    cuda: str | None
    driver: str | None
    tensorrt: str | None
    python: str

    @property
    def name(self) -> str:
        return _IMAGE.format(tag=self.tag)

    @property
    def minimum_driver(self) -> Release | None:
        """The first driver that runs the image's CUDA without forward compatibility."""
        return None if self.cuda is None else minimum_driver(self.cuda)

    @property
    def environment(self) -> str | None:
        """The virtual environment with TensorRT-LLM; None where the system's Python has it."""
        return None if self.tag < _ENVIRONMENT_SINCE else IMAGE_ENVIRONMENT

    @property
    def python_executable_path(self) -> str:
        """The Python for `base_image.python_executable_path`.

        Truss installs its server's packages into that Python, numpy below 2 among them. In the
        virtual environment they would replace those of TensorRT-LLM, so it is never named;
        `machine.runtime` finds the environment for the processes that need TensorRT-LLM.
        """
        return SYSTEM_PYTHON

    @property
    def documented(self) -> bool:
        """True if NVIDIA's table has this row."""
        return self.tensorrt is not None


IMAGES: tuple[Image, ...] = (
    Image("23.10", "0.5.0", None, None, None, "3.10"),
    Image("23.12", "0.7.0", None, None, None, "3.10"),
    Image("24.01", "0.7.1", None, None, None, "3.10"),
    Image("24.02", "0.8.0", None, None, None, "3.10"),
    Image("24.03", "0.8.0", None, None, None, "3.10"),
    Image("24.04", "0.9.0", "12.3.2.001", "545.23.08", "9.3.0", "3.10"),
    Image("24.05", "0.9.0", "12.3.2.001", "545.23.08", "10.0.1", "3.10"),
    Image("24.06", "0.10.0", "12.4.0.041", "550.54.14", "10.0.1", "3.10"),
    Image("24.07", "0.11.0", "12.4.1.003", "550.54.15", "10.1.0", "3.10"),
    Image("24.08", "0.12.0", "12.5.1.007", "555.42.06", "10.3.0", "3.10"),
    Image("24.09", "0.13.0", "12.5.1.007", "555.42.06", "10.4.0", "3.10"),
    Image("24.10", "0.14.0", "12.5.1.007", "555.42.06", "10.4.0", "3.10"),
    Image("24.11", "0.15.0", "12.6.3", "555.42.06", "10.6.0", "3.10"),
    Image("24.12", "0.16.0", "12.6.3", "560.35.05", "10.7.0", "3.12"),
    Image("25.01", "0.17.0", "12.8.0.038", "570.86.10", "10.8.0.43", "3.12"),
    Image("25.02", "0.17.0.post1", "12.8.0.038", "570.86.10", "10.8.0.43", "3.12"),
    Image("25.03", "0.18.0", "12.8.1.012", "570.124.06", "10.9.0.34", "3.12"),
    Image("25.04", "0.18.2", "12.8.1.012", "570.124.06", "10.9.0.34", "3.12"),
    Image("25.05", "0.19.0", "12.8.1.012", "570.124.06", "10.9.0.34", "3.12"),
    Image("25.06", "0.20.0", "12.9.0.036", "575.51.03", "10.10.0.31", "3.12"),
    Image("25.07", "0.20.0", "12.9.0.036", "575.51.03", "10.10.0.31", "3.12"),
    Image("25.08", "0.21.0", "12.9.0.043", "575.51.03", "10.11.0.33", "3.12"),
    Image("25.09", "1.0.0", "12.9.1.010", "575.57.08", "10.11.0.33", "3.12"),
    Image("25.10", "1.0.0", "12.9.1.010", "575.57.08", "10.11.0.33", "3.12"),
    Image("25.11", "1.0.3.2510", "13.0.2.006", "580.95.05", "10.13.3.9", "3.12"),
    Image("25.12", "1.1.0", "13.0.2.006", "580.95.05", "10.13.3.9", "3.12"),
    Image("26.01", "1.1.0", "13.0.2.006", "580.95.05", "10.13.3.9", "3.12"),
    Image("26.02", "1.1.0", "13.0.2.006", "580.95.05", "10.13.3.9", "3.12"),
    Image("26.03", "1.2.0", "13.1.0.036", "590.44.01", "10.14.1.48", "3.12"),
    Image("26.04", "1.2.1", "13.1.0.036", "590.44.01", "10.14.1.48", "3.12"),
    Image("26.05", "1.2.1", "13.1.0.036", "590.44.01", "10.14.1.48", "3.12"),
    Image("26.06", "1.2.1", "13.1.0.036", "590.44.01", "10.14.1.48", "3.12"),
    Image("26.07", "1.2.1", "13.1.0.036", "590.44.01", "10.14.1.48", "3.12"),
)
"""Oldest first. 1.3, the release after the last row, no longer loads engines at all."""

_OWN_TENSORRT = {"0.9.0": "9.3.0"}
"""The TensorRT that a release pins, where its images differ: an engine of another does not load.

Source: the pin of ``tensorrt`` in NVIDIA/TensorRT-LLM v0.9.0.
"""

PINNED_IMAGE = next(image for image in IMAGES if image.tag == "25.10")
"""The default: the last image on CUDA 12, which the drivers of GPU clouds support."""

PINNED_VERSION = PINNED_IMAGE.tensorrt_llm


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The image for an engine.

    Attributes:
        image: the best match.
        exact: True if it has exactly the engine's version.
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
    """Return the first driver that runs a CUDA release, by CUDA's minor-version compatibility.

    Source: "CUDA Compatibility" in NVIDIA's data-center documentation. Its forward-compatibility
    packages allow older drivers for some GPUs.
    """
    return _MINIMUM_DRIVERS.get(cuda.split(".")[0])


def image_for(version: str) -> ImageChoice:
    """Choose the newest image with exactly this TensorRT-LLM version, or else the nearest.

    Of the images of one release, only those with its own TensorRT count.

    Nearest is an image of the same numbers (``0.12.0`` for ``0.12.0.dev2024080600``), then the
    newest one below, then the oldest of all.
    """
    wanted = release(version)
    own = _OWN_TENSORRT
    images = [i for i in IMAGES if i.tensorrt == own.get(i.tensorrt_llm, i.tensorrt)]
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
