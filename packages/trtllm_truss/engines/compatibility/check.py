"""Compatibility of settings, engine, rank files, image, GPUs and runtime, checked before a start.

A pure function; unknown facts are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.engines.compatibility.checkpoints import check_checkpoint
from trtllm_truss.engines.compatibility.gpus import KNOWN_QUANTIZATIONS, check_gpus
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.engines.compatibility.versions import check_container, check_versions
from trtllm_truss.engines.concurrency import instance_count
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist, warning
from trtllm_truss.engines.inspection import EngineDescription, EngineKind
from trtllm_truss.engines.rank_files import RankFiles
from trtllm_truss.engines.scheduling import check_scheduling
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig, Quantization
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.versions import release
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions

CPU_KEYS = frozenset(
    (
        *("max_beam_width", "max_tokens_in_paged_kv_cache", "enable_kv_cache_reuse"),
        *("enable_chunked_context", "batch_scheduler_policy", "cancellation_check_period_ms"),
        *("exclude_input_in_output", "normalize_log_probs"),
    )
)
"""Parameters that the CPU engine acts on (`backends.openvino_genai.parameters`)."""

_NUM_NODES_SINCE = (0, 19)
"""TensorRT-LLM's parameter `num_nodes`."""


def check_compatibility(
    settings: Settings, engine: EngineDescription, host: HostInfo
) -> list[Diagnostic]:
    """Return all mismatches, the most basic first.

    Raises:
        SettingsError: `runtime` asks for copies or GPUs that the engine's ranks cannot have.
    """
    instance_count(settings, engine)
    diagnostics = [*_parallelism(settings, engine), *_nodes(settings, engine, host)]
    if engine.rank_files is not None:
        diagnostics += _rank_files(engine.rank_files)
    if engine.config is not None:
        diagnostics += _limits(settings.runtime, engine)
        diagnostics += _capabilities(settings.runtime, engine.config)
        diagnostics += _unused_parameters(settings.runtime)
        diagnostics += check_scheduling(settings.runtime, engine)
        diagnostics += check_versions(engine.config, host)
    if host.known_version is None and engine.checkpoint is None:
        built = engine.config.assumed_version if engine.config else None
        diagnostics += _parameters(settings.runtime, host.version_for(built))
    diagnostics += check_checkpoint(settings, engine, host)
    if engine.kind is EngineKind.CPU:
        diagnostics += _unused_on_cpu(settings.runtime)
    else:
        diagnostics += check_container(host)
    if engine.number_formats is not None:
        diagnostics += _unknown_quantization(engine.number_formats)
    return [*diagnostics, *check_gpus(engine, host, settings.node_count)]


def _parallelism(settings: Settings, engine: EngineDescription) -> Iterator[Diagnostic]:
    for name in ("tensor_parallelism", "pipeline_parallelism"):
        wanted, built = getattr(settings, name), getattr(engine, name)
        if wanted != built:
            yield error(
                f"{name}_mismatch",
                f"config.yaml: model_metadata.{name} is {wanted}, but the engine in "
                f"{settings.engine_repository} was built for {built}; set it to {built}, or build "
                f"the engine for {wanted}.",
            )


def _nodes(settings: Settings, engine: EngineDescription, host: HostInfo) -> Iterator[Diagnostic]:
    nodes, ranks = settings.node_count, engine.world_size
    if nodes == 1:
        return
    version = host.version_for(engine.config.assumed_version if engine.config else None)
    if engine.kind is EngineKind.CPU:
        yield error(
            "nodes_unsupported",
            f"config.yaml: model_metadata.nodes is {nodes}, but an engine of the CPU runs on one "
            "host; remove it.",
        )
    elif ranks % nodes:
        yield error(
            "nodes_mismatch",
            f"config.yaml: model_metadata.nodes is {nodes}, but the engine has {ranks} ranks "
            "(tensor × pipeline parallelism), which that many hosts cannot share evenly; set nodes "
            f"to a divisor of {ranks}.",
        )
    elif release(version) < _NUM_NODES_SINCE:
        yield error(
            "nodes_version",
            f"config.yaml: model_metadata.nodes is {nodes}, but TensorRT-LLM "
            f"{version} places ranks on GPUs as if on one host; build the engine "
            f"with {'.'.join(map(str, _NUM_NODES_SINCE))} or newer.",
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


def _limits(runtime: RuntimeOptions, engine: EngineDescription) -> Iterator[Diagnostic]:
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


def _parameters(runtime: RuntimeOptions, version: str) -> Iterator[Diagnostic]:
    """Yield an error if `runtime` does not fit the engine's version.

    Where the version here is known, that was compared when config.yaml was read.
    """
    try:
        runtime.check_version(version)
    except SettingsError as problem:
        yield error("runtime_key_of_another_version", problem.message)


def _unused_on_cpu(runtime: RuntimeOptions) -> Iterator[Diagnostic]:
    for name in runtime.parameters:
        if name not in CPU_KEYS:
            yield warning(
                "runtime_key_unused",
                f"config.yaml: model_metadata.runtime.{name} has no effect on an engine of the "
                "CPU; remove it, or keep it for GPUs.",
            )


def _unknown_quantization(quantization: Quantization) -> Iterator[Diagnostic]:
    unknown = [
        name
        for name in (quantization.algorithm, quantization.kv_cache)
        if name is not None and name not in KNOWN_QUANTIZATIONS
    ]
    if unknown:
        yield warning(
            "quantization_unknown",
            f"the engine's quantization {' and '.join(unknown)} is unknown to this release, so "
            "neither its GPUs nor its KV cache can be checked; look for a newer release of "
            "trtllm-truss.",
        )
