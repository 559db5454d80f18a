"""LoRA adapters of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.listing import Source

ADAPTER_CONFIG = "adapter_config.json"
"""With this file in a model's folder, transformers loads the model that the file names instead."""


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """One linear layer that a LoRA adapter changes, identified by the names of its two matrices.

    Attributes:
        tensor: the name of either matrix in the adapter's file, for messages.
        layer: number of the decoder layer.
        path: below the decoder layer, such as ``self_attn.q_proj``.
        rank: rows of the first matrix, columns of the second.
        inputs: columns of the first matrix, the size of the layer's input.
        outputs: rows of the second matrix, the size of its output.
    """

    tensor: str
    layer: int
    path: str
    rank: int
    inputs: int
    outputs: int

    @property
    def module(self) -> str:
        """Name under which TensorRT-LLM looks it up: the path below attention or MLP."""
        return self.path.partition(".")[2]

    @property
    def numbers(self) -> int:
        return self.rank * (self.inputs + self.outputs)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One LoRA adapter, as its files describe it.

    Attributes:
        name: its key in `lora_adapters`.
    """

    name: str
    layers: tuple[AdaptedLayer, ...]

    @property
    def rank(self) -> int:
        """The largest rank; layers may differ."""
        return max(layer.rank for layer in self.layers)

    @property
    def numbers(self) -> int:
        return sum(layer.numbers for layer in self.layers)


@dataclass(frozen=True, slots=True)
class AdapterRepository:
    """The repository of one adapter whose weights are not downloaded yet.

    Attributes:
        repository: its name in config.yaml, without the revision.
        revision: as given in config.yaml.
    """

    repository: str
    revision: str | None
    adapter: Adapter
    source: Source
    files: tuple[str, ...]

    def fetch(self) -> Path:
        """Download the adapter and return its folder."""
        return self.source.fetch(self.files)
