"""`config.json` and rank files as each era's builder writes them.

Composed from the keys of each release's builder (``examples/llama/build.py`` up to 0.7,
``tensorrt_llm/builder.py`` and ``models/modeling_utils.py`` from 0.8) for Llama-3-8B and
Llama-2-7B; all were written for these tests.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

ENGINE_BYTES = 16_000_000_000


def old_config(
    *, tp: int = 1, pp: int = 1, quant_mode: int = 0, paged_context: bool | None = False
) -> Json:
    """Return a config of 0.5 (`paged_context` None omits the key) to 0.7 for Llama-2-7B."""
    plugins: Json = {
        "bert_attention_plugin": False,
        "context_fmha_type": 1,
        "gemm_plugin": "float16",
        "gpt_attention_plugin": "float16",
        "lookup_plugin": False,
        "nccl_plugin": False if tp == 1 else "float16",
        "paged_kv_cache": True,
        "remove_input_padding": True,
        "tokens_per_block": 64,
        "weight_only_quant_matmul_plugin": False,
    }
    if paged_context is not None:
        plugins["use_paged_context_fmha"] = paged_context
        plugins["use_context_fmha_for_generation"] = False
        plugins["use_custom_all_reduce"] = False
    return {
        "builder_config": {
            "fp8": False,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "int8": False,
            "max_batch_size": 8,
            "max_beam_width": 1,
            "max_input_len": 2048,
            "max_num_tokens": None,
            "max_output_len": 512,
            "max_position_embeddings": 4096,
            "name": "llama",
            "num_heads": 32,
            "num_kv_heads": 32,
            "num_layers": 32,
            "parallel_build": False,
            "pipeline_parallel": pp,
            "precision": "float16",
            "quant_mode": quant_mode,
            "tensor_parallel": tp,
            "use_refit": False,
            "vocab_size": 32000,
        },
        "plugin_config": plugins,
    }


def config_0_9(version: str = "0.9.0") -> Json:
    """Return a config of 0.8 to 0.10: `max_output_len`, cache kind as a plugin option."""
    config = new_config(version)
    build = config["build_config"]
    del build["max_seq_len"], build["kv_cache_type"], build["plugin_config"]["manage_weights"]
    build.update(max_input_len=1024, max_output_len=1024, max_batch_size=1, max_num_tokens=1024)
    build["plugin_config"].update(
        paged_kv_cache=True,
        gpt_attention_plugin="float16",
        tokens_per_block=128,
        use_custom_all_reduce=True,
        multi_block_mode=False,
        use_paged_context_fmha=False,
        enable_xqa=True,
    )
    return config


def config_0_12(version: str = "0.12.0") -> Json:
    """Return a config of 0.11 and 0.12: `max_seq_len`, still `paged_kv_cache`."""
    config = new_config(version)
    build = config["build_config"]
    del build["kv_cache_type"], build["plugin_config"]["manage_weights"]
    build["max_batch_size"] = 256
    build["plugin_config"].update(
        paged_kv_cache=True, tokens_per_block=64, use_paged_context_fmha=False, enable_xqa=True
    )
    return config


def config_0_18(version: str = "0.18.0") -> Json:
    """Return a config of 0.13 to 0.18: `kv_cache_type`."""
    config = new_config(version)
    config["build_config"]["plugin_config"].update(
        tokens_per_block=64, use_paged_context_fmha=False
    )
    return config


def new_config(
    version: str = "1.0.0",
    *,
    tp: int = 1,
    pp: int = 1,
    layers: int = 32,
    hidden: int | None = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    head_size: int | None = 128,
    dtype: str = "float16",
    algorithm: str | None = None,
    kv_cache: str | None = None,
    max_seq_len: int = 8192,
) -> Json:
    """Return a config of 0.19 to 1.2, by default for Llama-3-8B."""
    model: Json = {
        "architecture": "LlamaForCausalLM",
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": 128256,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 14336,
        "max_position_embeddings": max_seq_len,
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
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": kv_cache,
            "group_size": 128,
            "exclude_modules": None,
        },
    }
    if head_size is not None:
        model["head_size"] = head_size
    return {
        "version": version,
        "pretrained_config": model,
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": max_seq_len,
            "opt_batch_size": 8,
            "max_batch_size": 2048,
            "max_beam_width": 1,
            "max_num_tokens": 4096,
            "opt_num_tokens": None,
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "strongly_typed": True,
            "max_draft_len": 0,
            "speculative_decoding_mode": 1,
            "lora_config": {"lora_dir": [], "max_lora_rank": 64},
            "plugin_config": {
                "dtype": dtype,
                "bert_attention_plugin": "auto",
                "gpt_attention_plugin": "auto",
                "gemm_plugin": None,
                "nccl_plugin": None if tp == 1 else "auto",
                "mamba_conv1d_plugin": "auto",
                "context_fmha": True,
                "paged_kv_cache": True,
                "remove_input_padding": True,
                "tokens_per_block": 32,
                "use_paged_context_fmha": True,
                "paged_state": True,
                "manage_weights": False,
            },
        },
    }


def rank_names(config: Json) -> list[str]:
    """Return the names of a config's engine files, by rank."""
    if "version" in config:
        mapping = config["pretrained_config"]["mapping"]
        return [f"rank{rank}.engine" for rank in range(mapping["world_size"])]
    build = config["builder_config"]
    tp, pp = build["tensor_parallel"], build["pipeline_parallel"]
    stages = f"_pp{pp}" if pp > 1 else ""
    stem = f"{build['name']}_{build['precision']}_tp{tp}{stages}"
    return [f"{stem}_rank{rank}.engine" for rank in range(tp * pp)]


def listing(config: Json, *, engine_bytes: int = ENGINE_BYTES) -> list[tuple[str, int]]:
    """Return names and sizes of all files of an engine repository."""
    return [("config.json", 5000), *((name, engine_bytes) for name in rank_names(config))]
