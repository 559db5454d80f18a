"""`config.json` of real models, reduced to the keys that a build reads."""

from __future__ import annotations

from typing import Any

from trtllm_builder.commands import Target
from trtllm_truss.engines.model_config import Checkpoint, parse_checkpoint
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Settings


def usual(
    architecture: str, layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int
) -> dict[str, Any]:
    """Return the keys that most families share."""
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    }


LLAMA_3_8B = {
    **usual("LlamaForCausalLM", 32, 4096, 32, 8, 14336, 128256),
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "LLaMA": LLAMA_3_8B,
    "Mistral": usual("MistralForCausalLM", 32, 4096, 32, 8, 14336, 32000),
    "Mixtral": {
        **usual("MixtralForCausalLM", 32, 4096, 32, 8, 14336, 32000),
        "num_local_experts": 8,
    },
    "InternLM": {
        **usual("InternLMForCausalLM", 32, 4096, 32, 32, 11008, 103168),
        "auto_map": {"AutoModelForCausalLM": "modeling_internlm.InternLMForCausalLM"},
    },
    "InternLM2": {
        **usual("InternLM2ForCausalLM", 32, 4096, 32, 8, 14336, 92544),
        "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
    },
    "Falcon": {  # 40b
        "architectures": ["FalconForCausalLM"],
        "num_hidden_layers": 60,
        "hidden_size": 8192,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "multi_query": True,
        "new_decoder_architecture": True,
        "vocab_size": 65024,
        "torch_dtype": "bfloat16",
    },
    "Baichuan": {  # 13B-Chat
        "architectures": ["BaichuanForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"},
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "intermediate_size": 13696,
        "vocab_size": 64000,
        "model_max_length": 4096,
        "torch_dtype": "bfloat16",
    },
    "ChatGLM": {  # chatglm3-6b
        "architectures": ["ChatGLMModel"],
        "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
        "num_layers": 28,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "kv_channels": 128,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 13696,
        "padded_vocab_size": 65024,
        "seq_length": 8192,
        "torch_dtype": "float16",
    },
    "GPT-J": {
        "architectures": ["GPTJForCausalLM"],
        "n_layer": 28,
        "n_embd": 4096,
        "n_head": 16,
        "n_inner": None,
        "n_positions": 2048,
        "rotary_dim": 64,
        "vocab_size": 50400,
        "torch_dtype": "float32",
    },
    "Qwen": usual("Qwen2ForCausalLM", 28, 3584, 28, 4, 18944, 152064),
    "GPT": {  # starcoder
        "architectures": ["GPTBigCodeForCausalLM"],
        "n_layer": 40,
        "n_embd": 6144,
        "n_head": 48,
        "n_inner": 24576,
        "n_positions": 8192,
        "multi_query": True,
        "vocab_size": 49152,
        "torch_dtype": "float32",
    },
}


def checkpoint(family: str = "LLaMA", **changes: Any) -> Checkpoint:
    """Return a checkpoint of a family with changes to its `config.json`."""
    return parse_checkpoint(CONFIGS[family] | changes)


def settings(build: dict[str, Any], **metadata: Any) -> tuple[Settings, Build]:
    """Parse settings with a `build` block."""
    block = {"checkpoint_repository": "org/model", **build}
    parsed = parse_settings(
        {"model_metadata": {"trust_remote_code": True, "build": block} | metadata}
    )
    assert parsed.build is not None
    return parsed, parsed.build


H100 = Target("1.0.0", "H100", (9, 0), 80 * 10**9, 8)
A100 = Target("1.0.0", "A100", (8, 0), 80 * 10**9, 8)
