"""Everything that must fit together for an engine to be served, compared before it is started.

Settings, engine, rank files, the image and GPUs that config.yaml asks for, the GPUs that are
visible and the runtime that is installed: `disagreements` compares each with each and says what
does not fit. It is a pure function; what is not known is left out and not compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.engines.compatibility.gpus import gpu_disagreements
from trtllm_truss.engines.compatibility.versions import version_disagreements
from trtllm_truss.engines.diagnostics import Finding, error, shortlist, warning
from trtllm_truss.engines.inspection import EngineDescription
from trtllm_truss.engines.number_formats import KNOWN_QUANTIZATIONS
from trtllm_truss.engines.rank_files import RankFiles
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig, Quantization
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions


def disagreements(
    settings: Settings, engine: EngineDescription, surroundings: Surroundings
) -> list[Finding]:
    """What does not fit, most basic first.

    Args:
        settings: what config.yaml asks for.
        engine: what the engine says of itself.
        surroundings: what else is known.
    """
    findings = [*_parallelism(settings, engine)]
    if engine.rank_files is not None:
        findings += _rank_files(engine.rank_files)
    if engine.config is not None:
        findings += _limits(settings.runtime, engine)
        findings += _capabilities(settings.runtime, engine.config)
        findings += _unknown_quantization(engine.config.quantization)
        findings += version_disagreements(engine.config, surroundings)
    return [*findings, *gpu_disagreements(engine, surroundings)]


def _parallelism(settings: Settings, engine: EngineDescription) -> Iterator[Finding]:
    for name in ("tensor_parallelism", "pipeline_parallelism"):
        wanted, built = getattr(settings, name), getattr(engine, name)
        if wanted != built:
            yield error(
                f"{name}_mismatch",
                f"config.yaml: model_metadata.{name} is {wanted}, but the engine in "
                f"{settings.engine_repository} was built for {built}; set it to {built}, or build "
                f"the engine for {wanted}.",
            )


def _rank_files(files: RankFiles) -> Iterator[Finding]:
    if files.missing:
        yield error(
            "rank_files_missing",
            f"the engine's {len(files.names)} files are not complete, missing: "
            f"{shortlist(files.missing)}; upload all that the build wrote.",
        )
    if files.surplus:
        yield warning(
            "rank_files_surplus",
            f"nothing loads {shortlist(files.surplus)} of the engine repository, which config.json "
            "does not call for; remove what another build left there.",
        )


def _limits(runtime: RuntimeOptions, engine: EngineDescription) -> Iterator[Finding]:
    for name in ("max_batch_size", "max_beam_width"):
        wanted, built = getattr(runtime, name), getattr(engine, name)
        if wanted is not None and wanted > built:
            yield error(
                f"{name}_above_engine",
                f"config.yaml: model_metadata.runtime.{name} is {wanted}, but the engine takes at "
                f"most {built}; lower it, or build the engine with --{name} {wanted}.",
            )


def _capabilities(runtime: RuntimeOptions, config: EngineConfig) -> Iterator[Finding]:
    gaps = config.batching_gaps
    if gaps:
        yield error(
            "no_inflight_batching",
            "the engine was not built for in-flight batching, which needs gpt_attention_plugin, "
            "remove_input_padding and paged_kv_cache (recurrent models: mamba_conv1d_plugin, "
            f"remove_input_padding and paged_state); build it again with {', '.join(gaps)}.",
        )
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if getattr(runtime, name) and not config.plugins.paged_context_fmha:
            yield error(
                f"{name}_unsupported",
                f"config.yaml: model_metadata.runtime.{name} is true, but the engine was built "
                "without paged context FMHA; remove it, or build the engine with "
                "--use_paged_context_fmha enable.",
            )


def _unknown_quantization(quantization: Quantization) -> Iterator[Finding]:
    unknown = [
        name
        for name in (quantization.algorithm, quantization.kv_cache)
        if name is not None and name not in KNOWN_QUANTIZATIONS
    ]
    if unknown:
        yield warning(
            "quantization_unknown",
            f"the engine's quantization {' and '.join(unknown)} is not known here, so neither its "
            "GPUs nor its KV cache can be checked; see whether this project has a newer release.",
        )
