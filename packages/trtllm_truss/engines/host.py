"""The host of an engine, its GPUs and Triton's images, as plain data.

`machine.describe` finds those of this host; `Image` and `BaseImage` have the releases of
TensorRT-LLM and the drivers that they need.

``resources.accelerator`` in config.yaml can name the GPUs. Names: the ``Accelerator`` enum of Truss
(``truss/base/truss_config.py``). Memory: NVIDIA's data sheets, in GB of 10⁹ bytes, never more than
the driver reports. Compute capability: https://developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

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
        """The virtual environment with TensorRT-LLM; None where the system's Python has it."""
        return IMAGE_ENVIRONMENT if self.has_environment else None

    @property
    def python_executable_path(self) -> str:
        """The Python for `base_image.python_executable_path`.

        Truss installs its server's packages into that Python, numpy below 2 among them. In the
        virtual environment they would replace those of TensorRT-LLM, so it is never named;
        `machine.runtime` finds the environment for the processes that need TensorRT-LLM.
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
    """Return the first driver that runs a CUDA release, by CUDA's minor-version compatibility."""
    major = cuda.split(".")[0]
    rows = read_table("images", "drivers", MinimumDriver, key="cuda")
    return next((release(row.driver) for row in rows if row.cuda == major), None)


def image_for(version: str) -> ImageChoice:
    """Choose the newest image with exactly an engine's TensorRT-LLM version, or else the nearest.

    Of the images of one release, only those with its own TensorRT count.

    Nearest is an image of the same numbers (``0.12.0`` for ``0.12.0.dev2024080600``), then the
    newest one below, then the oldest of all.
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


ComputeCapability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as ``nvidia-smi`` prints it, such as ``NVIDIA H100 80GB HBM3``.
        total_bytes: its memory.
        free_bytes: memory that no process uses at this moment.
        compute_capability: major and minor, ``(9, 0)`` for Hopper.
        driver_version: of the machine, such as ``575.57.08``.
    """

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: ComputeCapability
    driver_version: str


_GIGABYTE = 10**9
_SPEC = re.compile(r"([A-Za-z0-9_]+)(?::([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of GPU.

    Attributes:
        name: as config.yaml spells it.
        model: the word of NVML's GPU name that identifies it.
        memory_bytes: memory of one GPU.
        compute_capability: major and minor.
    """

    name: str
    model: str
    memory_bytes: int
    compute_capability: ComputeCapability

    def matches(self, gpu: Gpu) -> bool:
        return re.search(rf"\b{self.model}\b", gpu.name, re.IGNORECASE) is not None


def _row(
    name: str, memory_gb: int, capability: ComputeCapability, model: str | None = None
) -> Accelerator:
    return Accelerator(name, model or name, memory_gb * _GIGABYTE, capability)


ACCELERATORS: dict[str, Accelerator] = {
    row.name: row
    for row in (
        _row("T4", 16, (7, 5)),
        _row("V100", 16, (7, 0)),
        _row("A10G", 24, (8, 6)),
        _row("A100", 80, (8, 0)),
        _row("A100_40GB", 40, (8, 0), "A100"),
        _row("L4", 24, (8, 9)),
        _row("L40S", 48, (8, 9)),
        _row("H100", 80, (9, 0)),
        _row("H100_40GB", 40, (9, 0), "H100"),  # half of one, cut by MIG
        _row("H200", 141, (9, 0)),
        _row("B200", 180, (10, 0)),
        _row("B300", 288, (10, 3)),
        _row("GB300", 288, (10, 3)),
        _row("RTX_PRO_6000", 96, (12, 0), "RTX PRO 6000"),
    )
}

_OTHER_GPUS: dict[str, ComputeCapability] = {
    **{"A30": (8, 0), "A10": (8, 6), "A40": (8, 6), "RTX A6000": (8, 6)},
    **{"L20": (8, 9), "L40": (8, 9), "RTX 4090": (8, 9)},
    **{"H20": (9, 0), "GH200": (9, 0), "GB200": (10, 0)},
}
"""GPUs outside the table that engines are built on."""


def find_capability(gpu_name: str) -> ComputeCapability | None:
    """Look up the compute capability of a GPU by any name: ``A100-SXM-80GB``, ``NVIDIA L4``."""
    words = gpu_name.replace("-", " ")
    rows = {row.model: row.compute_capability for row in ACCELERATORS.values()} | _OTHER_GPUS
    found = [model for model in rows if re.search(rf"\b{model}\b", words, re.IGNORECASE)]
    return rows[max(found, key=len)] if found else None


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A value of ``resources.accelerator``: ``H100`` or ``H100:2``.

    Attributes:
        name: the part before the colon.
        count: number of GPUs.
        accelerator: its row of the table, if any.
    """

    name: str
    count: int
    accelerator: Accelerator | None


def accelerator_of(instance_type: str) -> str | None:
    """Return the GPUs of ``resources.instance_type`` as an accelerator; None for a CPU instance.

    ``L4:4x16`` has one GPU, 4 cores and 16 GiB; ``A100:4x48x576`` has four; so has ``H100:4``.

    Source: docs.baseten.co/deployment/resources, and basetenlabs/baseten-skills,
    references/truss-config.md (0a2fc92).
    """
    name, _, size = instance_type.strip().partition(":")
    numbers = size.split("x")
    if name.upper() == "CPU":
        return None
    return f"{name}:{numbers[0]}" if len(numbers) != 2 and numbers[0] not in ("", "1") else name


def accelerator_text(value: object) -> str | None:
    """Return ``resources.accelerator`` as text: Truss reads a mapping of its two parts too.

    Source: AcceleratorSpec in truss/base/truss_config.py, 0.18.35.
    """
    if isinstance(value, Mapping):
        name, count = value.get("accelerator"), value.get("count", 1)
        return f"{name}:{count}" if isinstance(name, str) and isinstance(count, int) else None
    return value if isinstance(value, str) and value else None


def meant_accelerator(name: str) -> str | None:
    """Return the nearest of Truss's names to another one: ``H100`` for ``h100x2``."""
    plain = re.sub(r"([-_ ]80GB)?(X\d+)?(:.*)?$", "", name.upper().strip())  # A100 is that of 80 GB
    close = get_close_matches(plain, ACCELERATORS, n=1, cutoff=0.5)
    return close[0] if close else None


def parse_accelerator(spec: str) -> AcceleratorRequest | None:
    """Parse ``resources.accelerator``; None for a value that Truss refuses."""
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        return None
    name = match[1]
    return AcceleratorRequest(name, int(match[2] or 1), ACCELERATORS.get(name))


@dataclass(frozen=True, slots=True)
class HostInfo:
    """GPUs, CUDA, image and runtime of the host that runs an engine; None is "unknown".

    Attributes:
        accelerator: ``resources.accelerator`` of config.yaml, such as ``H100:2``.
        image: ``base_image.image`` of config.yaml.
        gpus: the visible GPUs.
        runtime_version: the installed version of TensorRT-LLM.
        python: ``base_image.python_executable_path`` of config.yaml.
        cuda_version: of the CUDA toolkit installed here.
        driver_fits: whether that toolkit runs on the driver, in any compatibility mode.
        accelerator_key: the key of ``resources`` that named the accelerator.
    """

    accelerator: str | None = None
    image: str | None = None
    gpus: Sequence[Gpu] | None = None
    runtime_version: str | None = None
    python: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    driver_fits: bool | None = None
    accelerator_key: str = "accelerator"

    @property
    def known_version(self) -> str | None:
        """The TensorRT-LLM version here; None if neither the runtime nor the image reveals it."""
        return self.runtime_version or (version_in(self.image) if self.image else None)

    @property
    def capability(self) -> ComputeCapability | None:
        """The compute capability of the GPUs here, or of config.yaml's; None if unknown."""
        if self.gpus:
            return self.gpus[0].compute_capability
        requested = parse_accelerator(self.accelerator or "")
        accelerator = requested.accelerator if requested else None
        return accelerator.compute_capability if accelerator else None

    def version_for(self, built: str | None = None) -> str:
        """Choose the TensorRT-LLM version whose tensors and parameters are rendered.

        Args:
            built: the version that built the engine, which runs on no other; None for an engine of
                another kind.
        """
        return self.known_version or built or PINNED_VERSION

    @classmethod
    def from_config(cls, config: Mapping[str, Any], here: HostInfo | None = None) -> HostInfo:
        """Take the platform's keys from a parsed config.yaml; Truss checks their types.

        Args:
            here: the rest; default: all of it is unknown.
        """
        accelerator = accelerator_text(_value(config, "resources", "accelerator"))
        if instance_type := _text(config, "resources", "instance_type"):
            accelerator = accelerator_of(instance_type)
        return replace(
            here or cls(),
            accelerator=accelerator,
            accelerator_key="instance_type" if instance_type else "accelerator",
            image=_text(config, "base_image", "image"),
            python=_text(config, "base_image", "python_executable_path"),
        )


def _text(config: Mapping[str, Any], section: str, key: str) -> str | None:
    value = _value(config, section, key)
    return value if isinstance(value, str) and value else None


def _value(config: Mapping[str, Any], section: str, key: str) -> object:
    values = config.get(section)
    return values.get(key) if isinstance(values, Mapping) else None
