"""A TensorRT-LLM engine's ``config.json`` of any era, the runtime's rules, and the rank files.

Source of the rules: the C++ runtime that loads the engine,
``cpp/tensorrt_llm/runtime/gptJsonConfig.cpp`` and
``cpp/include/tensorrt_llm/runtime/modelConfig.h`` in NVIDIA/TensorRT-LLM (read at 0.5, 0.9, 0.12,
0.16 and 1.0), and ``batch_manager/trtGptModel.h`` for prompt lengths.

The file has one of two schemas:

* Releases 0.5 to 0.7 (GPT and Qwen also 0.8): ``builder_config`` and ``plugin_config``, no version.
* From 0.8: ``version``, ``pretrained_config`` and ``build_config`` with its ``plugin_config``.

Sources: ``gptJsonConfig.cpp`` of the runtime, ``tensorrt_llm/builder.py``,
``tensorrt_llm/models/modeling_utils.py`` and ``tensorrt_llm/quantization/mode.py`` in
NVIDIA/TensorRT-LLM, and ``examples/llama/build.py`` at 0.7.

The runtime computes the names of the ranks' files (``GptJsonConfig::engineFilename``):
``rankR.engine`` for an engine with a version, ``<name>_<dtype>_tpN[_ppM]_rankR.engine`` for one
without. The runtime never opens any other ``.engine`` file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.engines.engine_files import CONFIG_FILE, MAX_LAYERS, MAX_VOCABULARY, PluginFlag
from trtllm_truss.engines.quantization import Quantization
from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import INT32_MAX, JsonObject, Size, Text, read_model
from trtllm_truss.releases import holds

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
    """Sizes fixed by the build.

    Attributes:
        max_batch_size: sequences that run at once.
        max_beam_width: maximum beams per request.
        max_input_tokens: ``max_input_len``, which limits only engines without packed input and
            context FMHA; see `EngineConfig.max_prompt_tokens`.
        max_sequence_tokens: prompt and generated tokens together: ``max_seq_len``, up to 0.10
            ``max_input_len + max_output_len``.
        max_batch_tokens: ``max_num_tokens``, tokens of one step over all sequences, if recorded.
        gather_context_logits: a prompt's logits can be returned.
        gather_generation_logits: the logits of generated tokens can be returned.
        speculative_decoding_mode: a bit of `SpeculativeDecodingMode`; 1 is none.
    """

    max_batch_size: Size
    max_beam_width: Size = 1
    max_input_tokens: Size = Field(alias="max_input_len")
    max_sequence_tokens: int = Field(alias="max_seq_len", ge=2, le=INT32_MAX)
    max_batch_tokens: Size | None = Field(None, alias="max_num_tokens")
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    speculative_decoding_mode: int | None = None

    @property
    def has_drafts(self) -> bool:
        return self.speculative_decoding_mode not in (None, _NO_SPECULATION)

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
        paged_kv_cache: the cache is divided into blocks.
        context_fmha: fused attention over prompts.
        paged_context_fmha: the same over a paged cache: KV-cache reuse and chunked context.
        paged_state: a recurrent model's state is divided into blocks.
        mamba_conv1d: the plugin of recurrent models.
        managed_weights: weights are in ``rankN_managed_weights.safetensors`` next to the engine.
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


class ReturnedLogits(NamedTuple):
    """Logits that a request may ask for: of its prompt, and of its generated tokens."""

    context: bool = False
    generation: bool = False


NO_LOGITS = ReturnedLogits()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One TensorRT-LLM engine, described by its ``config.json``.

    Attributes:
        version: the TensorRT-LLM version that built it; None in the schema of 0.5 to 0.7.
        assumed_version: `version`, or the newest release that writes such a file.
        name: the architecture (``LlamaForCausalLM``); in the old schema, the builder's name.
        recurrent: the model has a state instead of, or in addition to, a KV cache.
        built_on: the build's GPU as ``auto_parallel_config.cluster_key`` spells it (``L4``,
            ``A100-SXM-80GB``, ``NVIDIA-RTX-A6000``); None if not recorded.
        logits: logits that the build gathers in a readable form.
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
    logits: ReturnedLogits = NO_LOGITS

    def max_prompt_tokens(self, *, chunked_context: bool = False) -> int:
        """Return the number of tokens of the longest prompt that the runtime accepts.

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
        """Build options that in-flight batching needs and this engine does not have.

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


ENGINE_SUFFIX = ".engine"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The engine files of a repository, compared with its ``config.json``.

    Attributes:
        names: files that the runtime opens, by rank; with managed weights, each rank's second file
            follows the engines.
        missing: files of `names` that the repository does not have.
        surplus: engine files that nothing opens.
        largest_rank_bytes: size of the largest rank, about the GPU memory of its weights.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    largest_rank_bytes: int

    def of_ranks(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Return the files that the given ranks open."""
        world_size = sum(name.endswith(ENGINE_SUFFIX) for name in self.names)
        return tuple(name for i, name in enumerate(self.names) if i % world_size in ranks)

    def held_for(self, ranks: Collection[int]) -> RankFiles:
        """Return the comparison for a process that has the files of some ranks only."""
        own = self.of_ranks(ranks)
        return replace(self, missing=tuple(name for name in self.missing if name in own))


def opened_ranks(split: Parallelism) -> tuple[int, ...]:
    """Return the rank whose file each process of the MPI job opens, by process number.

    The leader, process 0, belongs to the last pipeline stage: the executor reverses the order of
    the stages and keeps the order within each. Source: ``initializeWorkers`` of
    ``cpp/tensorrt_llm/executor/executorImpl.cpp`` in NVIDIA/TensorRT-LLM, near 0.19 and near 1.1.
    """
    places = list(range(split.world_size))
    if split.pipeline > 1:
        places.reverse()
        for stage in range(split.pipeline):
            within = slice(stage * split.tensor, (stage + 1) * split.tensor)
            places[within] = reversed(places[within])
    return tuple(places.index(place) for place in range(split.world_size))


def match_rank_files(config: EngineConfig, sizes: Mapping[str, int]) -> RankFiles:
    """Compare files, given with their sizes, with the ones that the engine's runtime opens."""
    ranks = range(config.parallelism.world_size)
    engines = [_engine_name(config, rank) for rank in ranks]
    weights = (
        [f"rank{rank}_managed_weights.safetensors" for rank in ranks]
        if config.plugins.managed_weights
        else []
    )
    names = (*engines, *weights)
    return RankFiles(
        names=names,
        missing=tuple(name for name in names if name not in sizes),
        surplus=tuple(
            sorted(name for name in sizes if name.endswith(ENGINE_SUFFIX) and name not in engines)
        ),
        largest_rank_bytes=max(
            sum(sizes.get(name, 0) for name in names[rank :: len(engines)]) for rank in ranks
        ),
    )


def _engine_name(config: EngineConfig, rank: int) -> str:
    if config.version is not None:
        return f"rank{rank}{ENGINE_SUFFIX}"
    split = config.parallelism
    pipeline = f"_pp{split.pipeline}" if split.pipeline > 1 else ""
    dtype = config.quantization.dtype
    return f"{config.name}_{dtype}_tp{split.tensor}{pipeline}_rank{rank}{ENGINE_SUFFIX}"


_MAX_GPUS = 1024
_RECURRENT = ("MambaForCausalLM", "RecurrentGemmaForCausalLM", "mamba_", "recurrentgemma_")
_ATTENTION_LAYER = "attention"
_PAGED_CACHE_TYPES = ("PAGED", "DISABLED")  # without a cache there is nothing to page

# Bits of `quant_mode`, tensorrt_llm/quantization/mode.py.
_INT4_WEIGHTS, _INT8_WEIGHTS, _ACTIVATIONS = 1, 2, 4
_INT8_KV_CACHE, _FP8_KV_CACHE, _FP8_QDQ = 64, 128, 256

_LOGITS_TYPE = "float32"
_NO_SPECULATION = 1

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
    logits_dtype: Text = _LOGITS_TYPE
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
        config: the JSON object in the file.

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
    # `kv_cache_type`, from 0.13; the plugin's flag with the same meaning is older.
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
        logits=_logits(config),
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


def _logits(config: _NewConfig) -> ReturnedLogits:
    """Return the logits that a release's backend sends for this engine.

    With drafts in the engine, the executor fails the step of a request for logits
    (``handleContextLogits.cpp`` and ``handleGenerationLogits.cpp`` of
    cpp/tensorrt_llm/batch_manager in NVIDIA/TensorRT-LLM, near 1.0). The backend fails the response
    if their type differs from `config.pbtxt` (``fillTritonResponse`` of model_instance_state.cc in
    triton-inference-server/tensorrtllm_backend, v0.17.0 to v0.19.0).
    """
    build = config.build_config
    if (
        not holds("logits_of_steps", config.version)
        or config.pretrained_config.logits_dtype != _LOGITS_TYPE
        or build.has_drafts
    ):
        return NO_LOGITS
    return ReturnedLogits(build.gather_context_logits, build.gather_generation_logits)


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
    # A shorter list of kinds is a repeating pattern.
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
