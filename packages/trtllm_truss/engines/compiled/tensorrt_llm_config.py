"""Contents of a TensorRT-LLM engine's ``config.json``, of any era, and the runtime's rules.

Source of the rules, the C++ runtime that loads the engine: ``cpp/tensorrt_llm/runtime/
gptJsonConfig.cpp`` and ``cpp/include/tensorrt_llm/runtime/modelConfig.h`` in NVIDIA/TensorRT-LLM
(read at 0.5, 0.9, 0.12, 0.16 and 1.0), and ``batch_manager/trtGptModel.h`` for prompt lengths.
`config_schemas` reads the file itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from trtllm_truss.engines.json_files import INT32_MAX, JsonObject, PluginFlag, Size
from trtllm_truss.engines.number_formats import Quantization
from trtllm_truss.releases.tables import holds

_OLD_TOKENS_PER_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Split of an engine over GPUs, one rank on each.

    Attributes:
        tensor: GPUs that one layer is split over.
        pipeline: groups of layers on different GPUs.
        context: GPUs that one prompt is split over.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.context


class BuildLimits(JsonObject):
    """Sizes that the build fixed.

    Attributes:
        max_batch_size: sequences that run at once.
        max_beam_width: beams a request may ask for.
        max_input_tokens: ``max_input_len``, which binds only engines without packed input and
            context FMHA; see `EngineConfig.max_prompt_tokens`.
        max_sequence_tokens: prompt and generated tokens together: ``max_seq_len``, up to 0.10
            ``max_input_len + max_output_len``.
        max_batch_tokens: ``max_num_tokens``, tokens of one step over all sequences, if recorded.
    """

    max_batch_size: Size
    max_beam_width: Size = 1
    max_input_tokens: Size = Field(alias="max_input_len")
    max_sequence_tokens: int = Field(alias="max_seq_len", ge=2, le=INT32_MAX)
    max_batch_tokens: Size | None = Field(None, alias="max_num_tokens")

    @model_validator(mode="before")
    @classmethod
    def _add_output(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("max_seq_len") is None:
            tokens = values.get("max_input_len"), values.get("max_output_len")
            if isinstance(tokens[0], int) and isinstance(tokens[1], int):
                return {**values, "max_seq_len": sum(tokens)}
        return values


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of the model, before any split over GPUs.

    Attributes:
        vocab_size: tokens of the vocabulary.
        heads: attention heads of a layer.
        head_size: numbers per head and token.
        kv_heads: key/value heads by layer, 0 for a layer without attention.
    """

    vocab_size: int
    heads: int
    head_size: int
    kv_heads: tuple[int, ...]

    @property
    def layers(self) -> int:
        return len(self.kv_heads)


class Plugins(JsonObject):
    """The compiled-in features that serving depends on.

    Attributes:
        attention: the GPT attention plugin.
        packed_input: ``remove_input_padding``.
        paged_kv_cache: the cache is cut into blocks.
        context_fmha: fused attention over prompts.
        paged_context_fmha: the same over a paged cache: KV-cache reuse and chunked context.
        paged_state: a recurrent model's state is cut into blocks.
        mamba_conv1d: the plugin of recurrent models.
        managed_weights: weights are in ``rankN_managed_weights.safetensors`` beside the engine.
        tokens_per_block: tokens of one block of the paged cache.
        lora: adapters can be applied.
    """

    attention: PluginFlag = Field(False, alias="gpt_attention_plugin")
    packed_input: bool = Field(False, alias="remove_input_padding")
    paged_kv_cache: bool = False
    context_fmha: bool = False
    paged_context_fmha: bool = Field(False, alias="use_paged_context_fmha")
    paged_state: bool = False
    mamba_conv1d: PluginFlag = Field(False, alias="mamba_conv1d_plugin")
    managed_weights: bool = Field(False, alias="manage_weights")
    tokens_per_block: Size = _OLD_TOKENS_PER_BLOCK
    lora: PluginFlag = Field(False, alias="lora_plugin")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One TensorRT-LLM engine, by its ``config.json``.

    Attributes:
        version: the TensorRT-LLM version that built it; None in the schema of 0.5 to 0.7.
        assumed_version: `version`, or the newest release that writes a file like this one.
        name: the architecture (``LlamaForCausalLM``), in the old schema the builder's name.
        recurrent: the model has a state instead of, or in addition to, a KV cache.
        parallelism: the split over GPUs.
        limits: the sizes that the build fixed.
        shape: the model's dimensions.
        quantization: number formats.
        plugins: compiled-in features.
        built_on: the GPU of the build as ``auto_parallel_config.cluster_key`` spells it (``L4``,
            ``A100-SXM-80GB``, ``NVIDIA-RTX-A6000``); None where it is not recorded.
    """

    version: str | None
    assumed_version: str
    name: str
    recurrent: bool
    parallelism: Parallelism
    limits: BuildLimits
    shape: Shape
    quantization: Quantization
    plugins: Plugins
    built_on: str | None = None

    def max_prompt_tokens(self, *, chunked_context: bool = False) -> int:
        """Return the tokens of the longest prompt that the runtime accepts.

        With chunked context only the sequence limits it; with packed input and context FMHA a
        prompt must fit into one step, and ``max_input_len`` has no effect
        (``TRTGptModel maxInputLen`` in the runtime's log). For engines before 0.11 and for
        those without ``max_num_tokens`` the limit is ``max_input_len``.

        Args:
            chunked_context: ``enable_chunked_context`` is set for the runtime.
        """
        whole = self.limits.max_sequence_tokens - 1
        if chunked_context and self.plugins.paged_context_fmha:
            return whole
        if self._one_step_prompts and self.limits.max_batch_tokens is not None:
            return min(whole, self.limits.max_batch_tokens)
        return min(whole, self.limits.max_input_tokens)

    @property
    def _one_step_prompts(self) -> bool:
        return (
            holds("packed_prompts", self.assumed_version)
            and self.plugins.packed_input
            and self.plugins.context_fmha
        )

    @property
    def batching_gaps(self) -> tuple[str, ...]:
        """Build options that in-flight batching needs and this engine lacks.

        The names are those of ``config.json``; the rule is ``supportsInflightBatching`` of the
        runtime.
        """
        plugins = self.plugins
        needs = (
            {
                "mamba_conv1d_plugin": plugins.mamba_conv1d,
                "remove_input_padding": plugins.packed_input,
                "paged_state": plugins.paged_state,
            }
            if self.recurrent
            else {
                "gpt_attention_plugin": plugins.attention,
                "remove_input_padding": plugins.packed_input,
                "paged_kv_cache": plugins.paged_kv_cache,
            }
        )
        return tuple(name for name, built_in in needs.items() if not built_in)
