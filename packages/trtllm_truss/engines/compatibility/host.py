"""The host of an engine, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.versions import version_in, version_to_render


@dataclass(frozen=True, slots=True)
class HostInfo:
    """GPUs, image and runtime of the host that runs an engine; None is "unknown".

    Attributes:
        accelerator: ``resources.accelerator`` of config.yaml, such as ``H100:2``.
        image: ``base_image.image`` of config.yaml.
        gpus: the visible GPUs.
        runtime_version: the installed version of TensorRT-LLM.
    """

    accelerator: str | None = None
    image: str | None = None
    gpus: Sequence[Gpu] | None = None
    runtime_version: str | None = None

    @property
    def known_version(self) -> str | None:
        """The TensorRT-LLM version here; None if neither runtime nor image tells."""
        return self.runtime_version or (version_in(self.image) if self.image else None)

    @property
    def tensorrt_llm_version(self) -> str:
        return version_to_render(self.runtime_version, self.image)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        gpus: Sequence[Gpu] | None = None,
        runtime_version: str | None = None,
    ) -> HostInfo:
        """Take the platform's keys from a parsed config.yaml; Truss checks their types."""
        return cls(
            accelerator=_text(config, "resources", "accelerator"),
            image=_text(config, "base_image", "image"),
            gpus=gpus,
            runtime_version=runtime_version,
        )


def _text(config: Mapping[str, Any], section: str, key: str) -> str | None:
    values = config.get(section)
    value = values.get(key) if isinstance(values, Mapping) else None
    return value if isinstance(value, str) and value else None
