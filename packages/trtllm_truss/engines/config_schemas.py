"""Reads both schemas of a TensorRT-LLM engine's ``config.json``.

* Releases 0.5 to 0.7 (GPT and Qwen also 0.8): ``builder_config`` and ``plugin_config``, no version.
* From 0.8: ``version``, ``pretrained_config`` and ``build_config`` with its ``plugin_config``.

Sources: ``gptJsonConfig.cpp`` of the runtime, ``tensorrt_llm/builder.py``,
``tensorrt_llm/models/modeling_utils.py`` and ``tensorrt_llm/quantization/mode.py`` in
NVIDIA/TensorRT-LLM, and ``examples/llama/build.py`` at 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.engines.json_fields import Fields
from trtllm_truss.engines.tensorrt_llm_config import (
    EngineConfig,
    Limits,
    Parallelism,
    Plugins,
    Quantization,
    Shape,
)
from trtllm_truss.errors import ArtifactError

CONFIG_FILE = "config.json"

_MOST_GPUS = 1024
_MOST_LAYERS = 4096
_RECURRENT = ("MambaForCausalLM", "RecurrentGemmaForCausalLM", "mamba_", "recurrentgemma_")
_ATTENTION_LAYER = "attention"
_PAGED_CACHE_TYPES = ("PAGED", "DISABLED")  # without a cache there is nothing to page
_OLD_TOKENS_PER_BLOCK = 64

# Bits of `quant_mode`, tensorrt_llm/quantization/mode.py.
_INT4_WEIGHTS, _INT8_WEIGHTS, _ACTIVATIONS = 1, 2, 4
_INT8_KV_CACHE, _FP8_KV_CACHE, _FP8_QDQ = 64, 128, 256


def parse_config(config: Mapping[str, Any]) -> EngineConfig:
    """What an engine's parsed ``config.json`` says.

    Args:
        config: the file's JSON object.

    Raises:
        ArtifactError: it is of neither schema, or a value that serving needs is missing or wrong.
    """
    fields = Fields(CONFIG_FILE, config)
    if "build_config" in fields and "pretrained_config" in fields:
        return _read_new(fields)
    if "builder_config" in fields:
        return _read_old(fields)
    raise ArtifactError(
        f"{CONFIG_FILE} describes no TensorRT-LLM engine: it has neither build_config with "
        "pretrained_config nor builder_config. "
        + (
            "It is the model's own; take the one that the build wrote beside the engine files."
            if "model_type" in fields or "architectures" in fields
            else "Take the file from the build's output."
        )
    )


def _read_new(fields: Fields) -> EngineConfig:
    model, build = fields.section("pretrained_config"), fields.section("build_config")
    plugins, mapping = build.section("plugin_config"), model.section("mapping")
    version, architecture = fields.text("version"), model.text("architecture")
    return EngineConfig(
        version=version,
        assumed_version=version,
        name=architecture,
        recurrent=architecture.startswith(_RECURRENT),
        parallelism=_parallelism(mapping, "tp_size", "pp_size", "cp_size"),
        limits=_limits(build),
        shape=_shape(
            model, layers="num_hidden_layers", heads="num_attention_heads", kv="num_key_value_heads"
        ),
        quantization=_quantization(model),
        plugins=_plugins(
            plugins,
            context_fmha=plugins.flag("context_fmha"),
            paged=plugins.flag("paged_kv_cache") or _is_paged(build),
        ),
    )


def _read_old(fields: Fields) -> EngineConfig:
    build, plugins = fields.section("builder_config"), fields.section("plugin_config")
    name = build.text("name")
    return EngineConfig(
        version=None,
        # Paged context FMHA came with KV-cache reuse, in 0.7.
        assumed_version="0.7.1" if "use_paged_context_fmha" in plugins else "0.5.0",
        name=name,
        recurrent=name.startswith(_RECURRENT),
        parallelism=_parallelism(build, "tensor_parallel", "pipeline_parallel", "context_parallel"),
        limits=_limits(build),
        shape=_shape(build, layers="num_layers", heads="num_heads", kv="num_kv_heads"),
        quantization=_old_quantization(build),
        plugins=_plugins(
            plugins,
            context_fmha=plugins.plugin("context_fmha_type"),
            paged=plugins.flag("paged_kv_cache"),
        ),
    )


def _parallelism(fields: Fields, tensor: str, pipeline: str, context: str) -> Parallelism:
    parallelism = Parallelism(
        tensor=fields.integer(tensor, most=_MOST_GPUS),
        pipeline=fields.integer(pipeline, 1, most=_MOST_GPUS),
        context=fields.integer(context, 1, most=_MOST_GPUS),
    )
    if parallelism.world_size > _MOST_GPUS:
        raise ArtifactError(
            f"{CONFIG_FILE}: the engine wants {parallelism.world_size} GPUs; at most {_MOST_GPUS} "
            "are believed. Take the file from the build's output."
        )
    return parallelism


def _limits(build: Fields) -> Limits:
    prompt = build.integer("max_input_len")
    sequence = build.integer("max_seq_len", None, least=2)
    return Limits(
        max_batch_size=build.integer("max_batch_size"),
        max_beam_width=build.integer("max_beam_width", 1),
        max_input_tokens=prompt,
        max_sequence_tokens=sequence or prompt + build.integer("max_output_len"),
        max_batch_tokens=build.integer("max_num_tokens", None),
    )


def _shape(model: Fields, *, layers: str, heads: str, kv: str) -> Shape:
    head_count = model.integer(heads)
    head_size = model.integer("head_size", None)
    if head_size is None:
        head_size = max(1, model.integer("hidden_size") // head_count)
    kinds = model.texts("layer_types") or (_ATTENTION_LAYER,)
    layer_count = model.integer(layers, most=_MOST_LAYERS)
    # A shorter list of kinds is a pattern that repeats.
    attentive = [kinds[layer % len(kinds)] == _ATTENTION_LAYER for layer in range(layer_count)]
    per_layer = model.integers("num_kv_heads_per_layer")
    if len(per_layer) != sum(attentive):
        per_layer = (model.integer(kv, head_count),) * sum(attentive)
    next_heads = iter(per_layer)
    return Shape(
        vocab_size=model.integer("vocab_size"),
        heads=head_count,
        head_size=head_size,
        kv_heads=tuple(next(next_heads) if attention else 0 for attention in attentive),
    )


def _plugins(plugins: Fields, *, context_fmha: bool, paged: bool) -> Plugins:
    return Plugins(
        attention=plugins.plugin("gpt_attention_plugin"),
        packed_input=plugins.flag("remove_input_padding"),
        paged_kv_cache=paged,
        context_fmha=context_fmha,
        paged_context_fmha=plugins.flag("use_paged_context_fmha"),
        paged_state=plugins.flag("paged_state"),
        mamba_conv1d=plugins.plugin("mamba_conv1d_plugin"),
        managed_weights=plugins.flag("manage_weights"),
        tokens_per_block=plugins.integer("tokens_per_block", _OLD_TOKENS_PER_BLOCK),
        lora=plugins.plugin("lora_plugin"),
    )


def _is_paged(build: Fields) -> bool:
    """``kv_cache_type``, from 0.13; the plugin's flag of the same meaning is older."""
    return build.text("kv_cache_type", "").upper() in _PAGED_CACHE_TYPES


def _quantization(model: Fields) -> Quantization:
    dtype = model.text("dtype")
    if "quantization" not in model:
        return Quantization(dtype)
    fields = model.section("quantization")
    algorithm = fields.text("quant_algo", None)
    return Quantization(
        dtype=dtype,
        algorithm=None if algorithm == "NO_QUANT" else algorithm,
        kv_cache=fields.text("kv_cache_quant_algo", None),
    )


def _old_quantization(build: Fields) -> Quantization:
    mode = build.integer("quant_mode", 0, least=0)
    weights = {_FP8_QDQ: "FP8", _INT4_WEIGHTS: "INT4", _INT8_WEIGHTS | _ACTIVATIONS: "INT8"}
    caches = {_INT8_KV_CACHE: "INT8", _FP8_KV_CACHE: "FP8"}
    return Quantization(
        dtype=build.text("precision"),
        algorithm=next((name for bits, name in weights.items() if mode & bits), None),
        kv_cache=next((name for bits, name in caches.items() if mode & bits), None),
    )
