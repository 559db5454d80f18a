"""Listings and folders of Hugging Face checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.inspection import inspect_config

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.kinds import with_settings
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Settings

Json = dict[str, Any]
GB = 10**9


def llama(**changes: Any) -> Json:
    """Return the `config.json` of Llama-3.1-8B-Instruct."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
        **changes,
    }


def listing(weights_bytes: int = 16 * GB, **more: int) -> list[tuple[str, int]]:
    return [("config.json", 9), ("model.safetensors", weights_bytes), *more.items()]


def settings_for(**metadata: Any) -> Settings:
    return parse_settings({"model_metadata": {"engine_repository": "org/model", **metadata}})


def complete(
    config: Json, *, version: str | None = "1.2.1", weights_bytes: int = 16 * GB, **metadata: Any
) -> Engine:
    """Inspect a checkpoint by its listing and complete it with `model_metadata`."""
    engine = inspect_config(config, listing(weights_bytes))
    return with_settings(engine, settings_for(**metadata), version)


def write_checkpoint(folder: Path, config: Json | None = None, shards: int = 2) -> Path:
    """Write a checkpoint whose weights are not loadable."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or llama()))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    for name in names:
        (folder / name).write_bytes(b"weights")
    index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
