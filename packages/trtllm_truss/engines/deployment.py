"""An engine with the settings, the GPUs and the release that it is served with."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.engine import Engine
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Deployment:
    """An engine as this server runs it.

    Attributes:
        capacity: KV cache capacity on the visible GPUs; None if unknown.
        version: of TensorRT-LLM, which decides the names of tensors and parameters; None if
            unknown.
    """

    settings: Settings
    engine: Engine
    capacity: Capacity | None = None
    version: str | None = None
