"""What is known around an engine, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.versions import version_to_render


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where an engine is to run; None is "not known" everywhere.

    Attributes:
        accelerator: ``resources.accelerator`` of config.yaml, such as ``H100:2``.
        image: ``base_image.image`` of config.yaml.
        gpus: the GPUs that were found; empty if there are none.
        runtime_version: the TensorRT-LLM version that is installed here.
    """

    accelerator: str | None = None
    image: str | None = None
    gpus: Sequence[Gpu] | None = None
    runtime_version: str | None = None

    @property
    def tensorrt_llm_version(self) -> str:
        """The version to render and to build for."""
        return version_to_render(self.runtime_version, self.image)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        gpus: Sequence[Gpu] | None = None,
        runtime_version: str | None = None,
    ) -> Surroundings:
        """Takes the platform's own keys from a parsed config.yaml; Truss checks their types."""
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
