"""Options of TensorRT-LLM's tools, from their argparse declarations.

From NVIDIA/TensorRT-LLM at commits of the 1.0 and 1.1 development line: 368f8f2a (llama,
internlm2), 25b6cdd8 (baichuan, gptj), 10c1d594 (glm-4-9b), 7edbcccb (gpt), 323e8460 (falcon),
0df9aaf3 (qwen), 059c97c1 (quantize.py), 008b2b8d (commands/build.py with plugin/plugin.py).
"""

from __future__ import annotations

_COMMON = {"--model_dir", "--output_dir", "--dtype", "--tp_size", "--pp_size", "--workers"}
_WEIGHT_ONLY = _COMMON | {"--use_weight_only", "--weight_only_precision"}
_SMOOTH = _WEIGHT_ONLY | {
    *("--smoothquant", "--per_channel", "--per_token", "--int8_kv_cache", "--calib_dataset"),
}
_EXAMPLES = "$EXAMPLES/models"

FLAGS: dict[str, set[str]] = {
    f"{_EXAMPLES}/core/llama/convert_checkpoint.py": _SMOOTH
    | {
        *("--fp8_kv_cache", "--load_by_shard", "--load_model_on_cpu", "--rotary_base"),
        *("--per_group", "--group_size", "--quant_ckpt_path", "--use_fp8", "--calib_size"),
    },
    f"{_EXAMPLES}/core/internlm2/convert_checkpoint.py": _WEIGHT_ONLY,
    f"{_EXAMPLES}/contrib/falcon/convert_checkpoint.py": _WEIGHT_ONLY | {"--load_by_shard"},
    f"{_EXAMPLES}/contrib/baichuan/convert_checkpoint.py": _SMOOTH
    | {"--model_version", "--logits_dtype", "--group_size", "--quant_ckpt_path"},
    f"{_EXAMPLES}/core/glm-4-9b/convert_checkpoint.py": _SMOOTH
    | {"--chatglm_version", "--logits_dtype", "--device", "--load_model_on_cpu"},
    f"{_EXAMPLES}/contrib/gptj/convert_checkpoint.py": _WEIGHT_ONLY | {"--rotary_dim"},
    f"{_EXAMPLES}/core/qwen/convert_checkpoint.py": _SMOOTH
    | {"--per_group", "--group_size", "--load_model_on_cpu", "--moe_tp_size", "--moe_ep_size"},
    f"{_EXAMPLES}/core/gpt/convert_checkpoint.py": _SMOOTH
    | {"--gpt_variant", "--load_model_on_cpu", "--nemo_ckpt_path"},
    "$EXAMPLES/quantization/quantize.py": (_COMMON - {"--workers"})
    | {
        *("--qformat", "--calib_dataset", "--calib_size", "--calib_max_seq_length", "--batch_size"),
        *("--awq_block_size", "--kv_cache_dtype", "--seed", "--device", "--device_map"),
        *("--tokenizer_max_seq_length", "--quantize_lm_head", "--cp_size"),
    },
    "trtllm-build": {
        *("--checkpoint_dir", "--output_dir", "--max_batch_size", "--max_input_len"),
        *("--max_seq_len", "--max_beam_width", "--max_num_tokens", "--opt_num_tokens"),
        *("--kv_cache_type", "--workers", "--log_level", "--logits_dtype", "--fast_build"),
        *("--gather_context_logits", "--gather_generation_logits"),
        # plugin_config
        *("--gpt_attention_plugin", "--gemm_plugin", "--remove_input_padding", "--context_fmha"),
        *("--use_paged_context_fmha", "--use_fp8_context_fmha", "--tokens_per_block"),
        *("--use_fused_mlp", "--nccl_plugin", "--moe_plugin", "--reduce_fusion"),
    },
}

CHOICES = {
    "--dtype": {"auto", "float16", "bfloat16", "float32"},
    "--weight_only_precision": {"int8", "int4"},
    "--qformat": {"fp8", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo", "full_prec"},
    "--kv_cache_dtype": {"int8", "fp8"},
    "--model_version": {"v1_7b", "v1_13b", "v2_7b", "v2_13b"},
    "--chatglm_version": {"glm4", "chatglm3", "chatglm2", "chatglm", "glm"},
    "--gpt_variant": {"gpt2", "santacoder", "starcoder", "starcoder2", "nemotron"},
    "--kv_cache_type": {"paged", "continuous", "disabled"},
    "--logits_dtype": {"float16", "float32"},
}
