"""Every ``option.*`` of LMI's TensorRT-LLM guides and its counterpart here.

The guides are those of deepjavalibrary/djl-serving from LMI 0.25 to 0.32
(``serving/docs/lmi/user_guides/trt_llm_user_guide.md``) and its tutorial on building by hand.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LmiOption:
    """The counterpart of one option.

    Attributes:
        setting: the key below ``model_metadata``; None without a counterpart.
        note: a sentence.
    """

    setting: str | None
    note: str


_SAME = "The same."
_ROTARY = (
    "Written into a copy of the checkpoint's config.json, where the convert scripts read it. For "
    "LLaMA, InternLM and Qwen."
)

LMI_OPTIONS: dict[str, LmiOption] = {
    "model_id": LmiOption(
        "build.checkpoint_repository",
        "A checkpoint; a built engine goes into engine_repository.",
    ),
    "revision": LmiOption("build.checkpoint_revision", _SAME),
    "trust_remote_code": LmiOption("trust_remote_code", _SAME),
    "dtype": LmiOption("build.dtype", "fp16, bf16 and fp32 are float16, bfloat16 and float32."),
    "tensor_parallel_degree": LmiOption(
        "tensor_parallelism", "A number; `max` depends on the machine and is not supported."
    ),
    "pipeline_parallel_degree": LmiOption("pipeline_parallelism", _SAME),
    "max_rolling_batch_size": LmiOption("build.max_batch_size", _SAME),
    "rolling_batch": LmiOption(None, "Always on: it is in-flight batching."),
    "mpi_mode": LmiOption(None, "Follows from the number of ranks."),
    "max_input_len": LmiOption("build.max_input_len", _SAME),
    "max_output_len": LmiOption(
        "build.max_output_len",
        "Generated tokens, as up to LMI 0.29. From LMI 0.30 it means input and output together, "
        "which is build.max_seq_len.",
    ),
    "max_num_tokens": LmiOption("build.max_num_tokens", _SAME),
    "use_custom_all_reduce": LmiOption(
        "build.use_custom_all_reduce",
        "Up to TensorRT-LLM 0.11; later versions choose automatically.",
    ),
    "tokens_per_block": LmiOption("build.tokens_per_block", _SAME),
    "batch_scheduler_policy": LmiOption("runtime.batch_scheduler_policy", _SAME),
    "kv_cache_free_gpu_mem_fraction": LmiOption("runtime.kv_cache_free_gpu_mem_fraction", _SAME),
    "max_num_sequences": LmiOption(
        "build.max_batch_size", "The backend dropped it in 0.8; the batch size is the limit."
    ),
    "enable_trt_overlap": LmiOption(None, "Without effect in the backend since 0.10."),
    "enable_kv_cache_reuse": LmiOption(
        "runtime.enable_kv_cache_reuse",
        "The same; the build turns use_paged_context_fmha on by itself.",
    ),
    "baichuan_model_version": LmiOption(
        "build.baichuan_model_version", "The same, but required: a wrong default builds nonsense."
    ),
    "chatglm_model_version": LmiOption(
        "build.chatglm_model_version",
        "chatglm_6b is chatglm, chatglm2_6b and chatglm2_6b_32k are chatglm2, chatglm3_6b, "
        "chatglm3_6b_base and chatglm3_6b_32k are chatglm3, glm_10b is glm; null follows the "
        "checkpoint.",
    ),
    "gpt_model_version": LmiOption(
        "build.gpt_model_version", "The same; null follows the checkpoint."
    ),
    "multi_block_mode": LmiOption(
        "build.multi_block_mode",
        "Up to TensorRT-LLM 0.11; since then runtime.multi_block_mode, without another build.",
    ),
    "use_fused_mlp": LmiOption("build.use_fused_mlp", "The same; on by default from 0.13."),
    "rotary_base": LmiOption("build.rotary_base", _ROTARY),
    "rotary_dim": LmiOption("build.rotary_dim", "As rotary_base; GPT-J."),
    "rotary_scaling_type": LmiOption("build.rotary_scaling.type", _ROTARY),
    "rotary_scaling_factor": LmiOption(
        "build.rotary_scaling.factor", "Cannot be set without the type, nor the type without it."
    ),
    "quantize": LmiOption(
        "build.quantization.method",
        "smoothquant, awq, fp8, and int8_weight_only and int4_weight_only on top.",
    ),
    "smoothquant_alpha": LmiOption("build.quantization.alpha", _SAME),
    "smoothquant_per_token": LmiOption("build.quantization.per_token", _SAME),
    "smoothquant_per_channel": LmiOption("build.quantization.per_channel", _SAME),
    "multi_query_mode": LmiOption(None, "Read in the checkpoint's config.json."),
    "awq_format": LmiOption("build.quantization.format", _SAME),
    "q_format": LmiOption("build.quantization.format", "The later name of awq_format."),
    "awq_calib_size": LmiOption("build.quantization.calib_size", _SAME),
    "calib_size": LmiOption("build.quantization.calib_size", "The later name of awq_calib_size."),
    "calib_batch_size": LmiOption("build.quantization.calib_batch_size", _SAME),
    "awq_block_size": LmiOption("build.quantization.block_size", _SAME),
    "use_fp8_context_fmha": LmiOption("build.use_fp8_context_fmha", _SAME),
    "logits_dtype": LmiOption("build.logits_dtype", _SAME),
    "load_by_shard": LmiOption("build.load_by_shard", _SAME),
    "num_checkpoint_workers": LmiOption("build.workers", "One number for both steps."),
    "num_engine_workers": LmiOption("build.workers", "One number for both steps."),
    "trtllm_checkpoint_path": LmiOption(None, "The builder uses a folder below HF_HOME."),
}
