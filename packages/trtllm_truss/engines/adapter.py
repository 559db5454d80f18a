"""One LoRA adapter, as an engine takes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter.

    Attributes:
        rank: of its matrices.
        modules: the layers that it changes, by TensorRT-LLM's names.
    """

    rank: int
    modules: frozenset[str]
