"""`config.json` of real checkpoints, reduced to the keys that are read, and their first release."""

from __future__ import annotations

from typing import Any

from tests.engines.checkpoint.checkpoints import Json, llama

NEVER = None
FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
NEMOTRON_NANO = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"


def config(
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    positions: int,
    **more: Any,
) -> Json:
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        **more,
    }


def nested(architecture: str, text: Json, **more: Any) -> Json:
    return {"architectures": [architecture], "vision_config": {}, "text_config": text, **more}


def text(*sizes: int, **more: Any) -> Json:
    inner = config("", *sizes, **more)
    del inner["architectures"]
    return inner


DEEPSEEK = (61, 7168, 128, 128, 129280, 163840)

MODELS: dict[str, tuple[Json, str | None]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (llama(), "1.0.0"),
    "meta-llama/Llama-3.3-70B-Instruct": (
        config("LlamaForCausalLM", 80, 8192, 64, 8, 128256, 131072),
        "1.0.0",
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        nested(
            "Llama4ForConditionalGeneration",
            text(48, 5120, 40, 8, 202048, 10485760, head_dim=128, num_local_experts=16),
        ),
        "1.0.0",
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": (
        config("MistralForCausalLM", 32, 4096, 32, 8, 32768, 32768),
        "1.0.0",
    ),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        nested(
            "Mistral3ForConditionalGeneration",
            text(40, 5120, 32, 8, 131072, 131072, head_dim=128),
        ),
        "1.0.0",
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (
        config("MixtralForCausalLM", 32, 4096, 32, 8, 32000, 32768, num_local_experts=8),
        "1.0.0",
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        config("Qwen2ForCausalLM", 28, 3584, 28, 4, 152064, 32768),
        "1.0.0",
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        config("Qwen2_5_VLForConditionalGeneration", 28, 3584, 28, 4, 152064, 128000),
        "1.0.0",
    ),
    "Qwen/Qwen3-8B": (
        config("Qwen3ForCausalLM", 36, 4096, 32, 8, 151936, 40960, head_dim=128),
        "1.0.0",
    ),
    "Qwen/Qwen3-8B-FP8": (
        config(
            *("Qwen3ForCausalLM", 36, 4096, 32, 8, 151936, 40960),
            head_dim=128,
            quantization_config=FP8_BLOCKS,
        ),
        "1.0.0",
    ),
    "Qwen/Qwen3-30B-A3B": (
        config(
            *("Qwen3MoeForCausalLM", 48, 2048, 32, 4, 151936, 40960), head_dim=128, num_experts=128
        ),
        "1.0.0",
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        config(
            *("Qwen3NextForCausalLM", 48, 2048, 16, 2, 151936, 262144),
            head_dim=256,
            full_attention_interval=4,
        ),
        "1.2.1",
    ),
    "Qwen/Qwen3-VL-8B-Instruct": (
        nested(
            "Qwen3VLForConditionalGeneration",
            text(36, 4096, 32, 8, 151936, 262144, head_dim=128),
        ),
        "1.2.1",
    ),
    "Qwen/Qwen3.5-397B-A17B": (
        nested(
            "Qwen3_5MoeForConditionalGeneration",
            text(
                *(60, 4096, 32, 2, 248320, 262144),
                head_dim=256,
                layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 15,
            ),
        ),
        "1.3.0",
    ),
    "google/gemma-3-1b-it": (
        config("Gemma3ForCausalLM", 26, 1152, 4, 1, 262144, 32768, head_dim=256),
        "1.0.0",
    ),
    "google/gemma-3-4b-it": (
        nested(
            "Gemma3ForConditionalGeneration",
            {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
            torch_dtype="bfloat16",
        ),
        "1.0.0",
    ),
    "microsoft/phi-4": (config("Phi3ForCausalLM", 40, 5120, 40, 10, 100352, 16384), "1.0.0"),
    "deepseek-ai/DeepSeek-V3": (
        config("DeepseekV3ForCausalLM", *DEEPSEEK, quantization_config=FP8_BLOCKS, **LATENT),
        "1.0.0",
    ),
    "moonshotai/Kimi-K2-Instruct": (
        config(
            *("DeepseekV3ForCausalLM", 61, 7168, 64, 64, 163840, 131072),
            quantization_config=FP8_BLOCKS,
            **LATENT,
        ),
        "1.0.0",
    ),
    "deepseek-ai/DeepSeek-V3.2": (
        config("DeepseekV32ForCausalLM", *DEEPSEEK, quantization_config=FP8_BLOCKS, **LATENT),
        "1.2.1",
    ),
    "moonshotai/Kimi-K2.5": (
        nested(
            "KimiK25ForConditionalGeneration",
            text(
                *(61, 7168, 64, 64, 163840, 262144),
                quantization_config={"quant_method": "compressed-tensors"},
                **LATENT,
            ),
        ),
        "1.3.0",
    ),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": (
        config(
            *("DeciLMForCausalLM", 4, 8192, 64, 8, 128256, 131072),
            num_key_value_heads=None,
            block_configs=[
                {"attention": {"n_heads_in_group": 8, "no_op": False}},
                {"attention": {"n_heads_in_group": None, "no_op": True}},
            ]
            * 2,
        ),
        "1.0.0",
    ),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (
        config(
            *("NemotronHForCausalLM", 56, 4480, 40, 8, 131072, 131072),
            head_dim=128,
            hybrid_override_pattern=NEMOTRON_NANO,
        ),
        "1.0.0",
    ),
    "nvidia/Minitron-8B-Base": (
        config("NemotronForCausalLM", 32, 4096, 48, 8, 256000, 4096, head_dim=128),
        "1.0.0",
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": (
        config("Exaone4ForCausalLM", 64, 5120, 40, 8, 102400, 131072, head_dim=128),
        "1.0.0",
    ),
    "openai/gpt-oss-20b": (
        config(
            *("GptOssForCausalLM", 24, 2880, 64, 8, 201088, 131072),
            head_dim=64,
            layer_types=["sliding_attention", "full_attention"] * 12,
            quantization_config={"quant_method": "mxfp4"},
        ),
        "1.1.0",
    ),
    "tencent/Hunyuan-7B-Instruct": (
        config("HunYuanDenseV1ForCausalLM", 32, 4096, 32, 8, 128167, 262144, head_dim=128),
        "1.1.0",
    ),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": (
        config("SeedOssForCausalLM", 64, 5120, 80, 8, 155136, 524288, head_dim=128),
        "1.1.0",
    ),
    "zai-org/GLM-4.5-Air": (
        config("Glm4MoeForCausalLM", 46, 4096, 96, 8, 151552, 131072, head_dim=128),
        "1.2.1",
    ),
    "bigcode/starcoder2-15b": (
        config("Starcoder2ForCausalLM", 40, 6144, 48, 4, 49152, 16384),
        "1.2.1",
    ),
    "MiniMaxAI/MiniMax-M2": (
        config(
            *("MiniMaxM2ForCausalLM", 62, 3072, 48, 8, 200064, 196608),
            head_dim=128,
            quantization_config=FP8_BLOCKS,
        ),
        "1.2.1",
    ),
    "CohereLabs/c4ai-command-a-03-2025": (
        config("Cohere2ForCausalLM", 64, 12288, 96, 8, 256000, 131072),
        "1.3.0",
    ),
    "deepseek-ai/DeepSeek-V4-Pro": (
        config("DeepseekV4ForCausalLM", *DEEPSEEK, quantization_config=FP8_BLOCKS, **LATENT),
        "1.3.0",
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": (
        llama(quantization_config={"quant_method": "compressed-tensors"}),
        "1.3.0",
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        config("DeepseekV2ForCausalLM", 27, 2048, 16, 16, 102400, 163840, **LATENT),
        NEVER,
    ),
    "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct": (
        config("ExaoneForCausalLM", 32, 4096, 32, 8, 102400, 32768),
        NEVER,
    ),
    "ibm-granite/granite-3.3-8b-instruct": (
        config("GraniteForCausalLM", 40, 4096, 32, 8, 49159, 131072),
        NEVER,
    ),
    "HuggingFaceTB/SmolLM3-3B": (
        config("SmolLM3ForCausalLM", 36, 2048, 16, 4, 128256, 65536),
        NEVER,
    ),
    "google/gemma-2-9b-it": (
        config("Gemma2ForCausalLM", 42, 3584, 16, 8, 256000, 8192, head_dim=256),
        NEVER,
    ),
    "microsoft/phi-2": (config("PhiForCausalLM", 32, 2560, 32, 32, 51200, 2048), NEVER),
    "tiiuae/falcon-7b": (config("FalconForCausalLM", 32, 4544, 71, 71, 65024, 2048), NEVER),
    "Qwen/Qwen2.5-Math-PRM-7B": (
        config("Qwen2ForProcessRewardModel", 28, 3584, 28, 4, 152064, 4096),
        NEVER,
    ),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (
        config(
            *("Qwen2ForCausalLM", 28, 3584, 28, 4, 152064, 32768),
            quantization_config={"quant_method": "awq", "bits": 4},
        ),
        NEVER,
    ),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": (
        config(
            *("Qwen2ForCausalLM", 28, 3584, 28, 4, 152064, 32768),
            quantization_config={"quant_method": "gptq", "bits": 4},
        ),
        NEVER,
    ),
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": (
        llama(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        NEVER,
    ),
    "a checkpoint with FP8 scales per tensor": (
        llama(quantization_config={"quant_method": "fp8", "activation_scheme": "static"}),
        NEVER,
    ),
}
