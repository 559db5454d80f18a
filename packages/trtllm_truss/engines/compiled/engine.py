"""Engines built by `trtllm-build`, and their compatibility with settings and image.

An engine runs only on the TensorRT that built it, and its plugins tie it to the TensorRT-LLM
release, so versions must be equal. Versions with the same numbers (``0.17.0`` and
``0.17.0.post1``) cause only a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from trtllm_truss.engines.adapters import Adapter
from trtllm_truss.engines.capacity import CacheShape, keys_and_values
from trtllm_truss.engines.compiled.config import (
    ENGINE_SUFFIX,
    NO_LOGITS,
    EngineConfig,
    RankFiles,
    ReturnedLogits,
    match_rank_files,
    opened_ranks,
    parse_config,
)
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist, warning
from trtllm_truss.engines.engine import ModelConfig, Placement, joined
from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.gpu_engine import GpuEngine
from trtllm_truss.engines.gpus import ComputeCapability, find_capability, parse_accelerator
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage, find_image, given_image, image_for, known_image
from trtllm_truss.engines.manifest import MANIFEST_FILE, Manifest
from trtllm_truss.engines.quantization import Quantization, cache_bits
from trtllm_truss.engines.scheduling import (
    MAX_UTILIZATION,
    NO_EVICTION,
    Scheduling,
    executor_parameters,
    has_encoder,
)
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.json_files import json_object
from trtllm_truss.releases import REUSED_BLOCKS, CacheReport, holds, release, rows_for
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import PARAMETERS, RuntimeOptions

_LMI_MARK = "config.pbtxt"
_NUM_NODES, _GPUS = "num_nodes", "gpu_device_ids"
_TOKENIZER_INFO = "xgrammar_tokenizer_info_path"
_NORMALIZE = "normalize_log_probs"


@dataclass(frozen=True, kw_only=True)
class CompiledEngine(GpuEngine):
    """An engine built by `trtllm-build`.

    Attributes:
        logits: logits of the build that the settings leave complete.
    """

    backend = "tensorrtllm"
    title = "a TensorRT-LLM engine"
    named = "a prebuilt TensorRT-LLM engine"
    answering = "a compiled engine"
    wanted = f"{CONFIG_FILE} with rank*{ENGINE_SUFFIX} (TensorRT-LLM)"
    wanted_deep = f"LMI's <name>/1/rank*{ENGINE_SUFFIX} with <name>/{_LMI_MARK}"
    suffixes = (ENGINE_SUFFIX,)
    fixed_split = True
    made, remake = "was built", "build"
    other_format = "build the engine with another quantization"
    scores_beams = False
    refused_fields = frozenset({"min_p"})

    config: EngineConfig
    rank_files: RankFiles
    logits: ReturnedLogits = NO_LOGITS

    @classmethod
    def locate(cls, sizes: Mapping[str, int]) -> Placement | None:
        """Find an engine in the top folder, or in LMI's layout.

        The latter is that of the large-model containers of DJL Serving
        (``isValidTrtLlmModelRepo`` in its ``LmiUtils.java`` up to 0.32)::

            <name>/1/*.engine, <name>/1/config.json     the engine
            <name>/config.pbtxt                         Triton's, ignored
            <name>/tokenizer_config.json, …             the tokenizer

        The repository may be the folder above ``<name>``, that folder itself, or one level further
        up.
        """
        of_lmi = _lmi_folders(sizes)
        if len(of_lmi) > 1:
            raise ArtifactError(
                f"the engine repository holds {len(of_lmi)} engines ({shortlist(of_lmi)}); name "
                "the folder of one, or keep only one."
            )
        placement = Placement()
        if not any("/" not in name and name.endswith(ENGINE_SUFFIX) for name in sizes):
            if not of_lmi:
                return None
            mark = joined(of_lmi[0], _LMI_MARK)
            placement = Placement(joined(of_lmi[0], "1"), of_lmi[0], (mark,))
        if CONFIG_FILE not in placement.sizes(sizes):
            raise ArtifactError(
                f"the engine repository has engine files but no {CONFIG_FILE}; add the one that "
                "the build wrote beside them."
            )
        return placement

    @classmethod
    def describe(cls, sizes: Mapping[str, int], contents: Mapping[str, object]) -> CompiledEngine:
        config = parse_config(json_object(CONFIG_FILE, contents[CONFIG_FILE]))
        return cls(
            max_sequence_tokens=config.limits.max_sequence_tokens,
            max_input_tokens=config.max_prompt_tokens(),
            max_batch_size=config.limits.max_batch_size,
            max_beam_width=config.limits.max_beam_width,
            tensor_parallelism=config.parallelism.tensor,
            pipeline_parallelism=config.parallelism.pipeline,
            config=config,
            rank_files=match_rank_files(config, sizes),
        )

    def with_settings(
        self,
        settings: Settings,
        version: str | None = None,
        adapters: Sequence[Adapter] = (),
        gpu: ComputeCapability | None = None,
    ) -> CompiledEngine:
        runtime = settings.runtime
        chunked = self.scheduling(runtime).chunked_context
        longest = self.config.max_prompt_tokens(chunked_context=chunked)
        logits, lost = self.config.logits, {name for name, _ in self.lost_logits(runtime)}
        kept = (given and name not in lost for name, given in logits._asdict().items())
        return replace(self, max_input_tokens=longest, logits=ReturnedLogits(*kept))

    # Files

    def needed_files(
        self, sizes: Mapping[str, int], *, with_code: bool, ranks: Collection[int] | None
    ) -> set[str]:
        files = self.rank_files
        return set(files.names if ranks is None else files.of_ranks(ranks))

    def check_manifest(self, manifest: Manifest) -> None:
        for name, recorded, found in (
            ("tensorrt_llm_version", manifest.tensorrt_llm_version, self.config.version),
            ("world_size", manifest.world_size, self.world_size),
        ):
            if recorded is not None and recorded != found:
                raise ArtifactError(
                    f"{MANIFEST_FILE} has {name} {recorded}, but {CONFIG_FILE} has {found}; "
                    "they are from different builds: upload all files of one."
                )

    # Compatibility with the settings and the host

    def check(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        yield from self.check_nodes(settings, host)
        yield from check_compiled(self, settings.runtime, host)
        yield from self.check_parameters(settings.runtime, host)
        yield from self.check_container(settings, host)
        yield from _gpu_of_build(self, host)

    @property
    def number_formats(self) -> Quantization:
        return self.config.quantization

    @property
    def facts(self) -> Sequence[str]:
        version = self.config.version or self.config.assumed_version
        guessed = "" if self.config.version else " (inferred from its files)"
        built = f"built by TensorRT-LLM {version}{guessed}; image: {image_for(version)}"
        if self.target_gpu is not None:
            return [f"{built}; GPU: {self.target_gpu.name}"]
        return [f"{built}; GPU: {self.config.built_on or 'not recorded, one of that generation'}"]

    @property
    def built_version(self) -> str:
        return self.config.assumed_version

    # Ranks and hosts

    @property
    def world_size(self) -> int:
        return self.config.parallelism.world_size

    def ranks_opened_by(self, index: int) -> tuple[int, ...] | None:
        return opened_ranks(self.config.parallelism)[index : index + 1]

    def held_for(self, ranks: Collection[int]) -> CompiledEngine:
        return replace(self, rank_files=self.rank_files.held_for(ranks))

    def lacks_guides(self, version: str | None) -> str:
        """Return why guided decoding cannot be enabled; empty if it can.

        The executor accepts it with drafts (``TrtGptModelInflightBatching`` of
        cpp/tensorrt_llm/batch_manager in NVIDIA/TensorRT-LLM, near 1.0), but no source confirms
        that drafts follow guides.
        """
        if self.config.limits.has_drafts:
            return "does not go with the engine's speculative decoding"
        return RuntimeOptions.lacks_guides(version or self.built_version)

    def ranks_need_tokenizer(self, settings: Settings) -> bool:
        return bool(settings.runtime.guided_decoding_backend)

    # Capacity, admission and limits

    @property
    def largest_rank_bytes(self) -> int:
        return self.rank_files.largest_rank_bytes

    @property
    def cache_shape(self) -> CacheShape:
        return cache_shape(self.config)

    def overcommits(self, settings: Settings) -> bool:
        return self.scheduling(settings.runtime).overcommits

    def max_stream_tokens(self, runtime: RuntimeOptions) -> int | None:
        # The last token is never an input when a request restarts.
        limit = self.max_input_tokens + 1
        bounded = limit < self.max_sequence_tokens
        return limit if bounded and self.scheduling(runtime).limits_streams else None

    def scheduling(self, runtime: RuntimeOptions) -> Scheduling:
        """Return the effective scheduling.

        Without settings: chunks if the engine supports them, and with chunks `max_utilization`.
        """
        chunked, policy = runtime.enable_chunked_context, runtime.batch_scheduler_policy
        can_evict = holds("policy_of_settings", self.config.assumed_version)
        has_chunks = self.config.plugins.paged_context_fmha and not self.config.recurrent
        if chunked is None:
            chunked = can_evict and has_chunks and not has_encoder(runtime)
        chunked = chunked and has_chunks
        if not (chunked or can_evict) or has_encoder(runtime):
            return Scheduling(NO_EVICTION, chunked)
        return Scheduling(policy or (MAX_UTILIZATION if chunked else NO_EVICTION), chunked)

    @property
    def reports_top_log_probs(self) -> bool:
        return self.logits.generation

    @property
    def reports_prompt_log_probs(self) -> bool:
        return self.logits.context

    @property
    def logits_vocabulary(self) -> int:
        return self.config.shape.vocab_size if any(self.logits) else 0

    def lost_logits(self, runtime: RuntimeOptions) -> Iterator[tuple[str, str]]:
        """Yield the `ReturnedLogits` that would have gaps, and the setting that prevents them.

        An eviction adds the generated tokens to the prompt, and later logits overwrite earlier
        ones: ``pause`` of llmRequest.h, ``copyStreamingGenerationLogits`` of
        handleGenerationLogits.cpp. With overlap, tokens may not be counted yet when their logits
        are copied (``mNumPreDecodedTokens``). Prompt tokens from the KV cache have no logits:
        handleContextLogits.cpp ("not all context logits could be produced"). All in
        cpp/tensorrt_llm/batch_manager of NVIDIA/TensorRT-LLM, near 1.0.
        """
        explicit = runtime.parameters.get("enable_kv_cache_reuse")  # blank means true
        ends_reuse = holds("context_logits_end_reuse", self.config.assumed_version)
        may_reuse = not (ends_reuse or explicit is False)
        for name, built in self.config.logits._asdict().items():
            if built and self.scheduling(runtime).overcommits:
                yield name, f"set batch_scheduler_policy to {NO_EVICTION}"
            elif built and runtime.parameters.get("enable_trt_overlap"):
                yield name, "remove enable_trt_overlap"
            elif built and has_encoder(runtime):
                yield name, "remove encoder_model_path"
            elif built and name == "context" and may_reuse:
                yield name, "set enable_kv_cache_reuse to false"

    @property
    def one_beam_width(self) -> bool:
        """TensorRT-LLM up to 0.9 requires the same width of all requests."""
        return not holds("any_beam_width", self.config.assumed_version)

    @property
    def takes_adapters(self) -> bool:
        return self.config.plugins.lora

    def refuses(self, version: str | None) -> frozenset[str]:
        shifts = holds("shifts_length_penalty", self.config.assumed_version)
        return self.refused_fields | ({"length_penalty"} if shifts else frozenset())

    def why_refused(self, field: str) -> str | None:
        built = self.config.assumed_version
        if field == "min_p":
            return (
                "is not supported by a compiled engine, whose Triton backend has no input for it; "
                "leave it out, or limit the tokens with top_p."
            )
        if field == "length_penalty" and holds("shifts_length_penalty", built):
            return (
                f"would become another parameter in the Triton backend of TensorRT-LLM {built} "
                "(NVIDIA's pull request 13633); leave it out, or build the engine with 1.1."
            )
        return super().why_refused(field)

    def cache_report(self, runtime: RuntimeOptions, version: str | None) -> CacheReport | None:
        """TensorRT-LLM counts blocks, those of all attention windows together.

        With several windows the count does not measure the prompt. Source:
        ``KVCacheManager::addSequence`` of cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp in
        NVIDIA/TensorRT-LLM, near 0.19 and 1.1.
        """
        has_windows = len(set(runtime.max_attention_window_size)) > 1
        if has_windows or not rows_for((REUSED_BLOCKS,), version):
            return None
        return CacheReport(REUSED_BLOCKS.name, self.config.plugins.tokens_per_block)

    # Server and image

    def model_config(
        self,
        settings: Settings,
        version: str,
        *,
        tokenizer_dir: Path,
        tokenizer_info: Path | None,
        adapters: Mapping[str, Path],
    ) -> ModelConfig:
        parameters = executor_parameters(
            settings.runtime, self.scheduling(settings.runtime), self.beam_limit(settings), version
        )
        # NVIDIA's default reports a token's probability relative to the candidates it was drawn
        # from, so all are 0 in greedy decoding: topKStage2Sampling of
        # cpp/tensorrt_llm/kernels/samplingTopKKernels.cu in NVIDIA/TensorRT-LLM, 0.8 to 1.2. Pull
        # request 12366, of March 2026, changed it.
        if any(row.name == _NORMALIZE for row in rows_for(PARAMETERS, version)):
            parameters.setdefault(_NORMALIZE, False)
        if tokenizer_info is not None:
            parameters[_TOKENIZER_INFO] = str(tokenizer_info)
        if settings.node_count > 1:
            parameters[_NUM_NODES] = settings.node_count
            # Otherwise a rank's GPU is its number modulo the GPUs per host that the build assumed.
            here = self.world_size // settings.node_count
            parameters.setdefault(_GPUS, tuple(range(here)))
        return ModelConfig(self.folder, parameters, inputs=(), outputs=())

    def base_image(self, given: str | None) -> BaseImage:
        if given is not None:
            return given_image(given)
        built = self.config.assumed_version
        choice = image_for(built)
        if not choice.exact:
            raise SettingsError(
                f"the engine was built by TensorRT-LLM {built}, which no Triton image has; rebuild "
                f"it with {choice.image.tensorrt_llm}, or name an image of yours with --image."
            )
        guessed = "" if self.config.version else " (inferred from its files)"
        return known_image(
            choice.image,
            f"the newest image with TensorRT-LLM {built}, which built the engine{guessed}; an "
            "engine runs on no other version.",
        )

    @property
    def built_for(self) -> ComputeCapability | None:
        if self.target_gpu is not None:
            return self.target_gpu.compute_capability
        return find_capability(self.config.built_on) if self.config.built_on else None

    def notes_about_gpu(self, accelerator: str) -> list[str]:
        if self.target_gpu is not None:
            return []
        built_on = self.config.built_on
        if built_on is None:
            return [
                "An engine runs only on the GPU generation that built it, and config.json does "
                f"not record which: unless it is that of {accelerator}, run init with "
                "--accelerator."
            ]
        return [f"The engine was built on {built_on} (auto_parallel_config.cluster_key)."]


KIND = CompiledEngine


def cache_shape(config: EngineConfig) -> CacheShape:
    split, quantization = config.parallelism, config.quantization
    return CacheShape(
        numbers=keys_and_values(
            config.shape.kv_heads, split.tensor * split.context, config.shape.head_size
        ),
        pipeline=split.pipeline,
        bits=cache_bits(quantization.kv_cache, quantization.dtype),
        block_tokens=config.plugins.tokens_per_block,
        sequence_tokens=config.limits.max_sequence_tokens,
        shorten="build the engine with a shorter max_seq_len or a quantized KV cache",
    )


def _lmi_folders(sizes: Mapping[str, int]) -> list[str]:
    """List folders with ``config.pbtxt`` and with engines in ``1/``, at most two levels deep."""
    versions = {PurePosixPath(name).parent for name in sizes if name.endswith(ENGINE_SUFFIX)}
    folders = {version.parent for version in versions if version.name == "1"}
    names = ["" if folder == PurePosixPath() else str(folder) for folder in folders]
    return sorted(
        name for name in names if joined(name, _LMI_MARK) in sizes and name.count("/") < 2
    )


_POLICY = "config.yaml: model_metadata.runtime.batch_scheduler_policy"


def check_compiled(
    engine: CompiledEngine, runtime: RuntimeOptions, host: HostInfo
) -> Iterator[Diagnostic]:
    """Yield all mismatches, the most basic first."""
    yield from _rank_files(engine.rank_files)
    yield from _limits(runtime, engine)
    yield from _capabilities(runtime, engine.config)
    yield from _unused_parameters(runtime)
    yield from _decoding_mode(runtime)
    yield from _scheduling(runtime, engine)
    yield from _logits(runtime, engine)
    yield from _versions(engine.config, host)


def _gpu_of_build(engine: CompiledEngine, host: HostInfo) -> Iterator[Diagnostic]:
    """Yield a warning if config.json records another kind of GPU than config.yaml specifies.

    `auto_parallel_config.cluster_key` may be a guess of the build, so it does not block the start.
    """
    built_on = engine.config.built_on
    request = parse_accelerator(host.accelerator) if host.accelerator else None
    if engine.target_gpu or built_on is None or request is None or request.accelerator is None:
        return
    if engine.built_for != request.accelerator.compute_capability:
        yield warning(
            "gpu_unlike_the_builders",
            f"the engine was built on {built_on} (auto_parallel_config.cluster_key in "
            "config.json) and loads only on GPUs of that compute capability; "
            f"resources.{host.accelerator_key} names {request.name}, which may not be one: name "
            "the kind of GPU that built it.",
        )


def _rank_files(files: RankFiles) -> Iterator[Diagnostic]:
    if files.missing:
        yield error(
            "rank_files_missing",
            f"the engine has {len(files.names)} files and some are missing: "
            f"{shortlist(files.missing)}; upload every file of the build.",
        )
    if files.surplus:
        yield warning(
            "rank_files_surplus",
            f"config.json does not name {shortlist(files.surplus)} of the engine repository, so "
            "nothing loads it; remove files of other builds.",
        )


def _limits(runtime: RuntimeOptions, engine: CompiledEngine) -> Iterator[Diagnostic]:
    for name in ("max_batch_size", "max_beam_width"):
        wanted, built = getattr(runtime, name), getattr(engine, name)
        if wanted is not None and wanted > built:
            yield error(
                f"{name}_above_engine",
                f"config.yaml: model_metadata.runtime.{name} is {wanted}, but the engine's limit "
                f"is {built}; lower it, or build the engine with --{name} {wanted}.",
            )


def _capabilities(runtime: RuntimeOptions, config: EngineConfig) -> Iterator[Diagnostic]:
    gaps = config.batching_gaps
    if gaps:
        yield error(
            "no_inflight_batching",
            "the engine was not built for in-flight batching, which needs gpt_attention_plugin, "
            "remove_input_padding and paged_kv_cache (recurrent models: mamba_conv1d_plugin, "
            f"remove_input_padding and paged_state); rebuild it with {', '.join(gaps)}.",
        )
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if getattr(runtime, name) and not config.plugins.paged_context_fmha:
            yield error(
                f"{name}_unsupported",
                f"config.yaml: model_metadata.runtime.{name} is true, but the engine was built "
                "without paged context FMHA; remove it, or build the engine with "
                "--use_paged_context_fmha enable.",
            )


def _unused_parameters(runtime: RuntimeOptions) -> Iterator[Diagnostic]:
    # executorImpl.cpp (near 1.1): only the orchestrator's threads poll.
    if "recv_poll_period_ms" in runtime.parameters:
        yield warning(
            "runtime_key_unused",
            "config.yaml: model_metadata.runtime.recv_poll_period_ms has no effect: only "
            "orchestrator mode reads it, which is not offered; remove it.",
        )


def _decoding_mode(runtime: RuntimeOptions) -> Iterator[Diagnostic]:
    """Find a mode that has only one of the two layers for limits.

    Neither layer then chooses a token for a request that needs the other: `skipDecode` in
    cpp/tensorrt_llm/layers/topKSamplingLayer.cpp and topPSamplingLayer.cpp (near 0.14 to 0.20).
    """
    mode = runtime.parameters.get("decoding_mode")
    missing = {"top_k": "without a top_k", "top_p": "that are greedy or have a top_k"}
    if mode in missing:
        yield error(
            "decoding_mode_incomplete",
            f"config.yaml: model_metadata.runtime.decoding_mode is {mode}, with which TensorRT-LLM "
            f"chooses no tokens for requests {missing[mode]}; remove it.",
        )


def _scheduling(runtime: RuntimeOptions, engine: CompiledEngine) -> Iterator[Diagnostic]:
    """Yield the consequences of an explicit policy with which the executor refuses requests."""
    if runtime.batch_scheduler_policy != MAX_UTILIZATION:
        return
    if has_encoder(runtime):
        yield error(
            "policy_unsupported",
            f"{_POLICY} is {MAX_UTILIZATION}, which TensorRT-LLM refuses for an engine with an "
            f"encoder (encoder_model_path); remove it, or set it to {NO_EVICTION}.",
        )
    limit = engine.max_stream_tokens(runtime)
    if limit is not None:
        chunks = (
            "set enable_chunked_context to true"
            if engine.config.plugins.paged_context_fmha
            else "build the engine with --use_paged_context_fmha enable"
        )
        yield warning(
            "streams_limited",
            f"{_POLICY} is {MAX_UTILIZATION} without context chunking, so prompt and output are "
            f"limited to {limit} tokens together, of {engine.max_sequence_tokens}; remove it, "
            f"or {chunks}.",
        )


def _logits(runtime: RuntimeOptions, engine: CompiledEngine) -> Iterator[Diagnostic]:
    refused = {"context": "echo with logprobs", "generation": "alternatives of sampled tokens"}
    for name, remedy in engine.lost_logits(runtime):
        yield warning(
            f"{name}_logits_incomplete",
            f"the engine was built with gather_{name}_logits, but its logits would be incomplete, "
            f"so {refused[name]} will be refused; {remedy} in config.yaml: model_metadata.runtime.",
        )


def _versions(config: EngineConfig, host: HostInfo) -> Iterator[Diagnostic]:
    """Yield at most one diagnostic each for image and runtime."""
    name, runtime = host.image, host.runtime_version
    image = None if name is None else find_image(name)
    if image is not None:
        where = f"config.yaml's image {image.tag}"
        yield from _compare(config, image.tensorrt_llm, "image_version_mismatch", where)
    if runtime is not None and (image is None or runtime != image.tensorrt_llm):
        yield from _compare(config, runtime, "version_mismatch", "the installed runtime")


def _compare(config: EngineConfig, found: str, code: str, where: str) -> Iterator[Diagnostic]:
    built = config.assumed_version
    if found == built:
        return
    fits = image_for(built)
    by = f"TensorRT-LLM {built}" if config.version else f"TensorRT-LLM 0.5 to 0.7 (about {built})"
    message = (
        f"the engine was built by {by}, but {where} is TensorRT-LLM {found}; set base_image.image "
        f"to {fits}, or rebuild the engine with {found}."
    )
    same_numbers = release(found) == release(built)
    yield warning(code, message) if same_numbers else error(code, message)
