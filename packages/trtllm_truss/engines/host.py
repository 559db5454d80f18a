"""The host of an engine, as plain data; `machine.describe` reads this machine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtllm_truss.engines.gpus import (
    ComputeCapability,
    Gpu,
    accelerator_of,
    accelerator_text,
    parse_accelerator,
)
from trtllm_truss.engines.images import PINNED_VERSION, version_in


@dataclass(frozen=True, slots=True)
class HostInfo:
    """GPUs, CUDA, image and runtime of the host that runs an engine; None means unknown.

    Attributes:
        accelerator: ``resources.accelerator`` of config.yaml, such as ``H100:2``.
        image: ``base_image.image`` of config.yaml.
        gpus: the visible GPUs.
        runtime_version: the installed version of TensorRT-LLM.
        python: ``base_image.python_executable_path`` of config.yaml.
        cuda_version: version of the CUDA toolkit installed here.
        driver_fits: the driver supports that toolkit, in any compatibility mode.
        accelerator_key: the key of ``resources`` that specifies the accelerator.
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
        """The TensorRT-LLM version here; None if neither runtime nor image reveals it."""
        return self.runtime_version or (version_in(self.image) if self.image else None)

    @property
    def capability(self) -> ComputeCapability | None:
        """The compute capability of the GPUs here, or in config.yaml; None if unknown."""
        if self.gpus:
            return self.gpus[0].compute_capability
        requested = parse_accelerator(self.accelerator or "")
        accelerator = requested.accelerator if requested else None
        return accelerator.compute_capability if accelerator else None

    def version_for(self, built: str | None = None) -> str:
        """Choose the TensorRT-LLM version whose tensors and parameters are rendered.

        Args:
            built: the version that built the engine, the only one it runs on; None for other kinds.
        """
        return self.known_version or built or PINNED_VERSION

    @classmethod
    def from_config(cls, config: Mapping[str, Any], here: HostInfo | None = None) -> HostInfo:
        """Read the platform's keys from a parsed config.yaml; Truss checks their types.

        Args:
            here: the other values; unknown by default.
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
