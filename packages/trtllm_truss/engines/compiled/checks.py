"""Compatibility of a compiled engine with the settings, the image and the runtime.

An engine runs only on the TensorRT that built it, and its plugins tie it to the TensorRT-LLM
release, so versions must be equal. Versions with the same numbers (``0.17.0`` and
``0.17.0.post1``) cause only a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trtllm_truss.engines.capacity import MAX_UTILIZATION, NO_EVICTION, has_encoder
from trtllm_truss.engines.compiled.config import EngineConfig, RankFiles
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist, warning
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.versions import find_image, image_for
from trtllm_truss.releases.tables import release
from trtllm_truss.settings.runtime import RuntimeOptions

if TYPE_CHECKING:
    from trtllm_truss.engines.compiled.engine import CompiledEngine

_POLICY = "config.yaml: model_metadata.runtime.batch_scheduler_policy"


def check_compiled(
    engine: CompiledEngine, runtime: RuntimeOptions, host: HostInfo
) -> Iterator[Diagnostic]:
    """Yield all mismatches, the most basic first."""
    yield from _rank_files(engine.rank_files)
    yield from _limits(runtime, engine)
    yield from _capabilities(runtime, engine.config)
    yield from _unused_parameters(runtime)
    yield from _scheduling(runtime, engine)
    yield from _versions(engine.config, host)


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


def _scheduling(runtime: RuntimeOptions, engine: CompiledEngine) -> Iterator[Diagnostic]:
    """Yield the consequences of an explicit policy that the executor refuses requests for."""
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
            f"{_POLICY} is {MAX_UTILIZATION} without context chunking, so prompt and answer are "
            f"limited to {limit} tokens together, of {engine.max_sequence_tokens}; remove it, or "
            f"{chunks}.",
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
