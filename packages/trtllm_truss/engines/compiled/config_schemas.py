"""Both schemas of a TensorRT-LLM engine's ``config.json``.

* Releases 0.5 to 0.7 (GPT and Qwen also 0.8): ``builder_config`` and ``plugin_config``, no version.
* From 0.8: ``version``, ``pretrained_config`` and ``build_config`` with its ``plugin_config``.

Sources: ``gptJsonConfig.cpp`` of the runtime, ``tensorrt_llm/builder.py``,
``tensorrt_llm/models/modeling_utils.py`` and ``tensorrt_llm/quantization/mode.py`` in
NVIDIA/TensorRT-LLM, and ``examples/llama/build.py`` at 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.engines.compiled.tensorrt_llm_config import (
    BuildLimits,
    EngineConfig,
    Parallelism,
    Plugins,
    Shape,
)
from trtllm_truss.engines.json_files import (
    CONFIG_FILE,
    INT32_MAX,
    MAX_LAYERS,
    MAX_VOCABULARY,
    JsonObject,
    PluginFlag,
    Size,
    Text,
    read_model,
)
from trtllm_truss.engines.number_formats import Quantization
from trtllm_truss.errors import ArtifactError

_MAX_GPUS = 1024
_RECURRENT = ("MambaForCausalLM", "RecurrentGemmaForCausalLM", "mamba_", "recurrentgemma_")
_ATTENTION_LAYER = "attention"
_PAGED_CACHE_TYPES = ("PAGED", "DISABLED")  # without a cache there is nothing to page

# Bits of `quant_mode`, tensorrt_llm/quantization/mode.py.
_INT4_WEIGHTS, _INT8_WEIGHTS, _ACTIVATIONS = 1, 2, 4
_INT8_KV_CACHE, _FP8_KV_CACHE, _FP8_QDQ = 64, 128, 256

_Ranks = Annotated[int, Field(ge=1, le=_MAX_GPUS)]
_Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
_Vocabulary = Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
_Count = Annotated[int, Field(ge=0, le=INT32_MAX)]


class _Shape(JsonObject):
    vocab_size: _Vocabulary
    head_size: Size | None = None
    hidden_size: Size | None = Field(None, validate_default=True)
    layer_types: list[str] = Field(default_factory=list)
    num_kv_heads_per_layer: list[_Count] = Field(default_factory=list)

    @field_validator("hidden_size")
    @classmethod
    def _required_without_head_size(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and info.data.get("head_size") is None:
            raise PydanticCustomError("missing", "Field required")
        return value


class _NewBuild(BuildLimits):
    plugin_config: Plugins
    kv_cache_type: Text = ""
    auto_parallel_config: Any = None  # a hint: never a reason to refuse the engine


class _Mapping(JsonObject):
    tp_size: _Ranks
    pp_size: _Ranks = 1
    cp_size: _Ranks = 1


class _Quantization(JsonObject):
    quant_algo: Text | None = None
    kv_cache_quant_algo: Text | None = None


class _NewModel(_Shape):
    architecture: Text
    dtype: Text
    mapping: _Mapping
    num_hidden_layers: _Layers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    quantization: _Quantization = _Quantization()


class _NewConfig(JsonObject):
    version: Text
    pretrained_config: _NewModel
    build_config: _NewBuild


class _OldPlugins(Plugins):
    context_fmha_type: PluginFlag = False


class _OldBuild(BuildLimits, _Shape):
    name: Text
    precision: Text
    quant_mode: _Count = 0
    tensor_parallel: _Ranks
    pipeline_parallel: _Ranks = 1
    context_parallel: _Ranks = 1
    num_layers: _Layers
    num_heads: Size
    num_kv_heads: Size | None = None


class _OldConfig(JsonObject):
    builder_config: _OldBuild
    plugin_config: _OldPlugins


def parse_config(config: Mapping[str, Any]) -> EngineConfig:
    """Read an engine's parsed ``config.json``.

    Args:
        config: the file's JSON object.

    Raises:
        ArtifactError: it has neither schema, or a required value is missing or wrong.
    """
    present = {name for name, value in config.items() if value is not None}
    if {"build_config", "pretrained_config"} <= present:
        return _read_new(read_model(_NewConfig, CONFIG_FILE, config))
    if "builder_config" in present:
        return _read_old(read_model(_OldConfig, CONFIG_FILE, config))
    raise ArtifactError(
        f"{CONFIG_FILE} does not describe a TensorRT-LLM engine: it has neither build_config with "
        "pretrained_config nor builder_config. "
        + (
            "It is the checkpoint's; take the one that the build wrote beside the engine files."
            if present & {"model_type", "architectures"}
            else "Take the file from the build's output."
        )
    )


def _read_new(config: _NewConfig) -> EngineConfig:
    model, build = config.pretrained_config, config.build_config
    mapping, algorithm = model.mapping, model.quantization.quant_algo
    plugins = build.plugin_config
    # `kv_cache_type`, from 0.13; the plugin's flag of the same meaning is older.
    paged = plugins.paged_kv_cache or build.kv_cache_type.upper() in _PAGED_CACHE_TYPES
    return EngineConfig(
        version=config.version,
        assumed_version=config.version,
        name=model.architecture,
        recurrent=model.architecture.startswith(_RECURRENT),
        parallelism=_parallelism(mapping.tp_size, mapping.pp_size, mapping.cp_size),
        limits=build,
        shape=_shape(
            model, model.num_hidden_layers, model.num_attention_heads, model.num_key_value_heads
        ),
        quantization=Quantization(
            dtype=model.dtype,
            algorithm=None if algorithm == "NO_QUANT" else algorithm,
            kv_cache=model.quantization.kv_cache_quant_algo,
        ),
        plugins=plugins.model_copy(update={"paged_kv_cache": paged}),
        built_on=_gpu_of_build(build.auto_parallel_config),
    )


def _read_old(config: _OldConfig) -> EngineConfig:
    build, plugins = config.builder_config, config.plugin_config
    # Paged context FMHA came with KV-cache reuse, in 0.7.
    is_0_7 = "paged_context_fmha" in plugins.model_fields_set
    return EngineConfig(
        version=None,
        assumed_version="0.7.1" if is_0_7 else "0.5.0",
        name=build.name,
        recurrent=build.name.startswith(_RECURRENT),
        parallelism=_parallelism(
            build.tensor_parallel, build.pipeline_parallel, build.context_parallel
        ),
        limits=build,
        shape=_shape(build, build.num_layers, build.num_heads, build.num_kv_heads),
        quantization=_old_quantization(build),
        plugins=plugins.model_copy(update={"context_fmha": plugins.context_fmha_type}),
    )


def _gpu_of_build(cluster: object) -> str | None:
    key = cluster.get("cluster_key") if isinstance(cluster, Mapping) else None
    return key if isinstance(key, str) and key else None


def _parallelism(tensor: int, pipeline: int, context: int) -> Parallelism:
    parallelism = Parallelism(tensor, pipeline, context)
    if parallelism.world_size > _MAX_GPUS:
        raise ArtifactError(
            f"{CONFIG_FILE} asks for {parallelism.world_size} GPUs (limit {_MAX_GPUS}); it is "
            "probably corrupt: take the file from the build's output."
        )
    return parallelism


def _shape(model: _Shape, layers: int, heads: int, kv_heads: int | None) -> Shape:
    kinds = model.layer_types or [_ATTENTION_LAYER]
    # A shorter list of kinds is a pattern that repeats.
    attentive = [kinds[layer % len(kinds)] == _ATTENTION_LAYER for layer in range(layers)]
    per_layer = model.num_kv_heads_per_layer
    if len(per_layer) != sum(attentive):
        per_layer = [kv_heads or heads] * sum(attentive)
    next_heads = iter(per_layer)
    return Shape(
        vocab_size=model.vocab_size,
        heads=heads,
        head_size=model.head_size or max(1, (model.hidden_size or 0) // heads),
        kv_heads=tuple(next(next_heads) if attention else 0 for attention in attentive),
    )


def _old_quantization(build: _OldBuild) -> Quantization:
    mode = build.quant_mode
    weights = {_FP8_QDQ: "FP8", _INT4_WEIGHTS: "INT4", _INT8_WEIGHTS | _ACTIVATIONS: "INT8"}
    caches = {_INT8_KV_CACHE: "INT8", _FP8_KV_CACHE: "FP8"}
    return Quantization(
        dtype=build.precision,
        algorithm=next((name for bits, name in weights.items() if mode & bits), None),
        kv_cache=next((name for bits, name in caches.items() if mode & bits), None),
    )
