"""`model_metadata.build`: how to make the engine from a checkpoint.

Names are those of `trtllm-build` and `convert_checkpoint.py` in NVIDIA/TensorRT-LLM, which are also
those of LMI's `option.*`, wherever these have one; null leaves a value to those tools.
`builder/flags.py` says which flag of which version each becomes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.settings.quantization import Quantization
from trtllm_truss.settings.section import Repository
from trtllm_truss.validation import Strict

_MAX_TOKENS = 1 << 24


class RotaryScaling(Strict):
    """How positions beyond the trained context are squeezed into it."""

    type: Literal["linear", "dynamic"] = Field(description="The kind of scaling.")
    factor: float = Field(gt=1, le=1024, description="New context length ÷ trained one.")


class Build(Strict):
    """What to build, and of what."""

    checkpoint_repository: Repository = Field(
        description="The model's weights as Hugging Face has them (`config.json` and safetensors), "
        "in the same forms as engine_repository."
    )
    checkpoint_revision: Repository | None = Field(
        None, description="Branch, tag or commit of checkpoint_repository."
    )
    backend: Literal["tensorrtllm", "openvino_genai"] = Field(
        "tensorrtllm", description="The Triton backend to build for: the GPU's or the CPU's."
    )
    publish_to: Repository | None = Field(
        None,
        description="Where a finished engine goes, and where later starts fetch it instead of "
        "building: `org/name` on Hugging Face (made private) or `s3://bucket/prefix`.",
    )

    max_batch_size: int | None = Field(
        None, ge=1, le=65536, description="Sequences that run at once."
    )
    max_input_len: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Tokens of the longest prompt."
    )
    max_output_len: int | None = Field(
        None,
        ge=1,
        le=_MAX_TOKENS,
        description="Tokens generated at most, the prompt not counted; with max_input_len, and "
        "instead of max_seq_len. (LMI from 0.30 on takes its option of this name for max_seq_len.)",
    )
    max_seq_len: int | None = Field(
        None,
        ge=2,
        le=_MAX_TOKENS,
        description="Tokens of prompt and answer together; null is the model's own limit.",
    )
    max_num_tokens: int | None = Field(
        None,
        ge=1,
        le=_MAX_TOKENS,
        description="Tokens of all sequences in one step; prompts above it need chunked context.",
    )
    opt_num_tokens: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="The number of tokens in one step to tune for."
    )
    max_beam_width: int = Field(1, ge=1, le=256, description="Beams a request may ask for.")
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        "auto", description="Of weights and activations; `auto` is the checkpoint's."
    )
    quantization: Quantization | None = Field(
        None, description="How weights are made smaller; one of the sections below, by `method`."
    )
    kv_cache_dtype: Literal["int8", "fp8"] | None = Field(
        None, description="Of the KV cache; null is dtype. Half the bytes, twice the sequences."
    )
    tokens_per_block: Literal[8, 16, 32, 64, 128, 256] | None = Field(
        None, description="Tokens in one block of the paged KV cache."
    )
    use_paged_context_fmha: bool | None = Field(
        None,
        description="Prompts may read the paged KV cache: needed for KV-cache reuse and chunked "
        "context. Null turns it on where `runtime` asks for either.",
    )
    use_fp8_context_fmha: bool | None = Field(
        None, description="Attention over prompts in FP8 (Hopper, with fp8 quantization)."
    )
    context_fmha_fp32_acc: bool | None = Field(
        None, description="Attention over prompts sums in FP32."
    )
    multi_block_mode: bool | None = Field(
        None, description="Splits long sequences over several blocks of the GPU."
    )
    use_fused_mlp: bool | None = Field(
        None, description="Joins the two input layers of a gated MLP."
    )
    use_custom_all_reduce: bool | None = Field(
        None, description="TensorRT-LLM's own sum over GPUs that NVLink connects."
    )
    gemm_plugin: Literal["auto", "float16", "bfloat16", "float32", "fp8", "disable"] = Field(
        "auto", description="Matrix products by cuBLAS instead of TensorRT: faster to build."
    )
    logits_dtype: Literal["float16", "float32"] | None = Field(None, description="Of the logits.")
    rotary_base: float | None = Field(
        None, gt=0, description="Base of the rotary embedding; replaces the checkpoint's."
    )
    rotary_dim: int | None = Field(
        None, ge=1, le=65536, description="Rotated numbers of a head (GPT-J); as rotary_base."
    )
    rotary_scaling: RotaryScaling | None = Field(
        None, description="Scaling of the rotary embedding; replaces the checkpoint's."
    )
    baichuan_model_version: Literal["v1_7b", "v1_13b", "v2_7b", "v2_13b"] | None = Field(
        None, description="Which Baichuan; `config.json` does not tell. Required for Baichuan."
    )
    chatglm_model_version: Literal["glm", "chatglm", "chatglm2", "chatglm3", "glm4"] | None = Field(
        None, description="Which ChatGLM; null is what the checkpoint says."
    )
    gpt_model_version: Literal["gpt2", "santacoder", "starcoder", "starcoder2"] | None = Field(
        None, description="Which GPT; null is what the checkpoint says."
    )
    load_by_shard: bool = Field(
        False, description="Converts one file of the checkpoint after the other: less memory."
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Ranks converted and built at once; more are faster and take more memory.",
    )

    @field_validator("max_output_len")
    @classmethod
    def _needs_the_input(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and info.data.get("max_input_len") is None:
            raise _disagreement("max_output_len counts on top of max_input_len; set it as well")
        return tokens

    @field_validator("max_seq_len")
    @classmethod
    def _holds_the_input(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and info.data.get("max_output_len") is not None:
            raise _disagreement("it counts prompt and answer together; set max_output_len or it")
        if tokens is not None and tokens < (info.data.get("max_input_len") or 0):
            raise _disagreement("prompt and answer together are less than max_input_len; raise it")
        return tokens

    @field_validator("opt_num_tokens")
    @classmethod
    def _is_possible(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and tokens > (info.data.get("max_num_tokens") or tokens):
            raise _disagreement("it is more than max_num_tokens; lower it")
        return tokens

    @property
    def sequence_tokens(self) -> int | None:
        """Tokens of prompt and answer together, however that was said; None is the model's."""
        if self.max_output_len is not None and self.max_input_len is not None:
            return self.max_input_len + self.max_output_len
        return self.max_seq_len


def _disagreement(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("disagreement", "{sentence}", {"sentence": sentence})
