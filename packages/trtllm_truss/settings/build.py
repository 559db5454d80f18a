"""`model_metadata.build`: building an engine from a checkpoint.

Keys have the names of `trtllm-build` and `convert_checkpoint.py` in NVIDIA/TensorRT-LLM and of
LMI's `option.*`; null leaves a value to those tools. `trtllm_builder/commands.py` maps them to
flags. `quantization` has one section per method.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.validation import Strict


class SmoothQuant(Strict):
    """INT8 weights and activations; calibrated by the checkpoint's conversion script."""

    method: Literal["smoothquant"]
    alpha: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of the quantization difficulty moved from activations to weights.",
    )
    per_token: bool = Field(
        False, description="Compute a scale per token while serving: slower, more accurate."
    )
    per_channel: bool = Field(
        False, description="One scale per channel of the weights: slower, more accurate."
    )


class Awq(Strict):
    """INT4 weights, scaled by activations; calibrated by `quantize.py`."""

    method: Literal["awq"]
    format: Literal["int4_awq", "w4a8_awq"] = Field(
        "int4_awq", description="Activations in 16 bits, or (`w4a8_awq`, Ada and Hopper) in FP8."
    )
    calib_size: int = Field(
        32, ge=1, le=32, description="Number of calibration samples; limited by `quantize.py`."
    )
    calib_batch_size: int = Field(1, ge=1, le=1024, description="Samples per calibration batch.")
    block_size: Literal[32, 64, 128] = Field(
        128, description="Weights per scale; smaller groups are more accurate and need more memory."
    )


class Fp8(Strict):
    """FP8 weights and activations; calibrated by `quantize.py`. Ada, Hopper and later."""

    method: Literal["fp8"]
    calib_size: int = Field(512, ge=1, le=100_000, description="Calibration samples.")
    calib_batch_size: int = Field(1, ge=1, le=1024, description="Samples per calibration batch.")


class WeightOnly(Strict):
    """INT8 or INT4 weights by rounding, without calibration; also for CPU engines."""

    method: Literal["int8_weight_only", "int4_weight_only"]


Quantization = Annotated[SmoothQuant | Awq | Fp8 | WeightOnly, Field(discriminator="method")]

METHOD_SECTIONS: dict[str, type[Strict]] = {
    **{"smoothquant": SmoothQuant, "awq": Awq, "fp8": Fp8},
    **dict.fromkeys(("int8_weight_only", "int4_weight_only"), WeightOnly),
}
"""The section of each method."""

Repository = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

_MAX_TOKENS = 1 << 24


class RotaryScaling(Strict):
    """Scaling of positions beyond the trained context."""

    type: Literal["linear", "dynamic"] = Field(description="The kind of scaling.")
    factor: float = Field(
        gt=1, le=1024, description="New context length divided by the trained one."
    )


class Build(Strict):
    """Source and options of a build."""

    checkpoint_repository: Repository = Field(
        description="Checkpoint in Hugging Face format (`config.json` and safetensors), in the "
        "same forms as engine_repository."
    )
    checkpoint_revision: Repository | None = Field(
        None, description="Branch, tag or commit of checkpoint_repository."
    )
    backend: Literal["tensorrtllm", "openvino_genai"] = Field(
        "tensorrtllm", description="The Triton backend to build for: GPU or CPU."
    )
    publish_to: Repository | None = Field(
        None,
        description="Where to publish the finished engine, so that later starts fetch it instead "
        "of building it: `org/name` on Hugging Face (created private) or "
        "`s3://bucket/prefix`.",
    )

    max_batch_size: int | None = Field(
        None, ge=1, le=65536, description="Maximum number of concurrent sequences."
    )
    max_input_len: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Maximum number of prompt tokens."
    )
    max_output_len: int | None = Field(
        None,
        ge=1,
        le=_MAX_TOKENS,
        description="Maximum number of generated tokens, excluding the prompt; set with "
        "max_input_len, instead of max_seq_len. (From LMI 0.30 on, its option of this name "
        "means max_seq_len.)",
    )
    max_seq_len: int | None = Field(
        None,
        ge=2,
        le=_MAX_TOKENS,
        description="Maximum number of prompt and generated tokens together; null uses the "
        "model's limit.",
    )
    max_num_tokens: int | None = Field(
        None,
        ge=1,
        le=_MAX_TOKENS,
        description="Maximum tokens of all sequences in one step; longer prompts need chunked "
        "context.",
    )
    opt_num_tokens: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Number of tokens per step to tune for."
    )
    max_beam_width: int = Field(1, ge=1, le=256, description="Maximum number of beams per request.")
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        "auto", description="Type of weights and activations; `auto` uses the checkpoint's."
    )
    quantization: Quantization | None = Field(
        None,
        description="Quantization of the weights; one of the sections below, selected by `method`.",
    )
    kv_cache_dtype: Literal["int8", "fp8"] | None = Field(
        None,
        description="Type of the KV cache; null uses dtype. Halving the bytes doubles the number "
        "of sequences.",
    )
    tokens_per_block: Literal[8, 16, 32, 64, 128, 256] | None = Field(
        None, description="Tokens per block of the paged KV cache."
    )
    use_paged_context_fmha: bool | None = Field(
        None,
        description="Let prompts read the paged KV cache, as KV cache reuse and chunked context "
        "require. Null enables it if `runtime` enables either.",
    )
    use_fp8_context_fmha: bool | None = Field(
        None, description="Compute prompt attention in FP8 (Hopper, with fp8 quantization)."
    )
    context_fmha_fp32_acc: bool | None = Field(
        None, description="Accumulate prompt attention in FP32."
    )
    multi_block_mode: bool | None = Field(
        None, description="Split long sequences over several blocks of the GPU."
    )
    use_fused_mlp: bool | None = Field(
        None, description="Fuse the two input layers of a gated MLP."
    )
    use_custom_all_reduce: bool | None = Field(
        None, description="Use TensorRT-LLM's all-reduce for GPUs with NVLink."
    )
    gemm_plugin: Literal["auto", "float16", "bfloat16", "float32", "fp8", "disable"] = Field(
        "auto",
        description="Type of matrix products computed by cuBLAS instead of TensorRT, which "
        "builds faster.",
    )
    logits_dtype: Literal["float16", "float32"] | None = Field(
        None, description="Type of the logits."
    )
    gather_context_logits: bool | None = Field(
        None,
        description="Gather the logits of prompts, for their log probabilities (docs/engines.md).",
    )
    gather_generation_logits: bool | None = Field(
        None, description="Gather the logits of generated tokens, for their alternatives."
    )
    rotary_base: float | None = Field(
        None, gt=0, description="Base of the rotary embedding; overrides the checkpoint's."
    )
    rotary_dim: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Rotated dimensions per head (GPT-J); overrides the checkpoint's.",
    )
    rotary_scaling: RotaryScaling | None = Field(
        None, description="Scaling of the rotary embedding; overrides the checkpoint's."
    )
    baichuan_model_version: Literal["v1_7b", "v1_13b", "v2_7b", "v2_13b"] | None = Field(
        None,
        description="Version of Baichuan, which `config.json` does not contain; required "
        "for Baichuan.",
    )
    chatglm_model_version: Literal["glm", "chatglm", "chatglm2", "chatglm3", "glm4"] | None = Field(
        None, description="Version of ChatGLM; null uses the checkpoint's."
    )
    gpt_model_version: Literal["gpt2", "santacoder", "starcoder", "starcoder2"] | None = Field(
        None, description="Version of GPT; null uses the checkpoint's."
    )
    load_by_shard: bool = Field(
        False, description="Convert the checkpoint file by file, with less memory."
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Ranks converted and built concurrently; a higher number is faster and needs "
        "more memory.",
    )

    @field_validator("max_output_len")
    @classmethod
    def _check_max_output_len(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and info.data.get("max_input_len") is None:
            raise _conflict("max_output_len counts in addition to max_input_len; set both")
        return tokens

    @field_validator("max_seq_len")
    @classmethod
    def _check_max_seq_len(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and info.data.get("max_output_len") is not None:
            raise _conflict("it counts prompt and answer together; set either it or max_output_len")
        if tokens is not None and tokens < (info.data.get("max_input_len") or 0):
            raise _conflict("it is less than max_input_len; raise it")
        return tokens

    @field_validator("opt_num_tokens")
    @classmethod
    def _check_opt_num_tokens(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and tokens > (info.data.get("max_num_tokens") or tokens):
            raise _conflict("it is more than max_num_tokens; lower it")
        return tokens

    @property
    def for_cpu(self) -> bool:
        return self.backend == "openvino_genai"

    @property
    def sequence_tokens(self) -> int | None:
        """Maximum tokens of prompt and output together, from either option.

        None for the model's limit.
        """
        if self.max_output_len is not None and self.max_input_len is not None:
            return self.max_input_len + self.max_output_len
        return self.max_seq_len


def _conflict(message: str) -> PydanticCustomError:
    return PydanticCustomError("conflict", "{message}", {"message": message})
