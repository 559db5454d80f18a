"""LoRA adapters of any size, written by the library `safetensors`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from trtllm_truss.engines.adapters import AdaptedLayer, Adapter

ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
SMOLLM2_HIDDEN = 576
SQL = Adapter("sql", (AdaptedLayer("q.lora_A.weight", 0, "self_attn.q_proj", 8, 4096, 4096),))
"""One of Llama-3.1-8B, as read."""
_PREFIX = "base_model.model.model"


def adapter_config(**changes: Any) -> bytes:
    """Return the fields of ``adapter_config.json`` that TensorRT-LLM reads, and others."""
    known = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    return json.dumps({**known, **changes}).encode()


def adapter_weights(
    paths: Sequence[str] = ATTENTION,
    *,
    hidden: int = 4096,
    rank: int = 2,
    layers: Sequence[int] = (0,),
    stack: str = f"{_PREFIX}.layers",
    tensors: dict[str, tuple[int, ...]] | None = None,
) -> bytes:
    """Return a file with both matrices of each path in each layer.

    Args:
        hidden: size of all inputs and outputs.
        tensors: shapes of further ones, by name.
    """
    shapes = {
        f"{stack}.{layer}.{path}.lora_{side}.weight": shape
        for layer in layers
        for path in paths
        for side, shape in (("A", (rank, hidden)), ("B", (hidden, rank)))
    }
    shapes |= tensors or {}
    return save({name: np.ones(shape, np.float16) for name, shape in shapes.items()})


def adapter_files(config: bytes | None = None, weights: bytes | None = None) -> dict[str, bytes]:
    """Return both files by name; by default of an adapter of Llama-3.1-8B."""
    return {
        "adapter_config.json": adapter_config() if config is None else config,
        "adapter_model.safetensors": adapter_weights() if weights is None else weights,
    }


def write_adapter(folder: Path, config: bytes | None = None, weights: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in adapter_files(config, weights).items():
        (folder / name).write_bytes(content)
    return folder


def write_smollm2_adapter(folder: Path, **config: Any) -> Path:
    """Write an adapter of SmolLM2, which the fake library serves."""
    return write_adapter(folder, adapter_config(**config), adapter_weights(hidden=SMOLLM2_HIDDEN))
