"""Write engine folders as trtllm-build 1.0 does for a Llama, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_engine(
    folder: Path,
    *,
    max_batch_size: int = 2048,
    max_seq_len: int = 8192,
    world_size: int = 1,
    vocab_size: int = 49152,
    **behaviour: Any,
) -> Path:
    """Write `config.json` and `rankN.engine`, replacing an earlier engine's.

    Args:
        folder: created if missing.
        max_batch_size: concurrent requests.
        max_seq_len: tokens of prompt and output together.
        world_size: number of ranks; the paced engine has one, the tests' Python fake any number.
        vocab_size: tokens of the vocabulary.
        behaviour: behaviour of every rank; see `paced_engine.c` for the keys.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(max_batch_size, max_seq_len, world_size, vocab_size)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for rank in range(world_size):
        lines = "".join(f"{key}={value}\n" for key, value in behaviour.items())
        (folder / f"rank{rank}.engine").write_text(f"FAKE\n{lines}")
    return folder


def _config(
    max_batch_size: int, max_seq_len: int, world_size: int, vocab_size: int
) -> dict[str, Any]:
    return {
        "version": "1.0.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "vocab_size": vocab_size,
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_size": 64,
            "max_position_embeddings": max_seq_len,
            "mapping": {
                "world_size": world_size,
                "tp_size": world_size,
                "pp_size": 1,
                "cp_size": 1,
            },
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_input_len": max_seq_len - 1,
            "max_seq_len": max_seq_len,
            "max_batch_size": max_batch_size,
            "max_beam_width": 1,
            "max_num_tokens": max_seq_len,
            "kv_cache_type": "PAGED",
            "plugin_config": {
                "gpt_attention_plugin": "auto",
                "paged_kv_cache": True,
                "remove_input_padding": True,
                "tokens_per_block": 32,
                "use_paged_context_fmha": True,
            },
        },
    }
