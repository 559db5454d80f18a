"""The executor's scheduling of an engine: its policy, and whether it reads prompts in chunks.

Source, in NVIDIA/TensorRT-LLM: ``fetchNewRequests`` of ``cpp/tensorrt_llm/executor/
executorImpl.cpp`` refuses a stream that it may evict and cannot restart (read near 0.19 and near
1.1; 0.12 to 0.18 are closed source). Up to 0.11 the backend itself replaces the policy
(``model_instance_state.cc`` in triton-inference-server/tensorrtllm_backend, v0.8.0:164 and
v0.11.0:274).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.inspection import EngineDescription, EngineKind
from trtllm_truss.releases.versions import release
from trtllm_truss.settings.runtime import RuntimeOptions

MAX_UTILIZATION, NO_EVICTION = "max_utilization", "guaranteed_no_evict"

_POLICY = "config.yaml: model_metadata.runtime.batch_scheduler_policy"
_EVICTION_SINCE = (0, 12)
"""The first release whose backend leaves the policy to the settings, also without chunks."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling of requests by the engine's executor.

    Attributes:
        policy: `max_utilization` pauses requests when the KV cache is full;
            `guaranteed_no_evict` starts only requests that are sure to finish.
        chunked_context: long prompts are read in chunks.
    """

    policy: str
    chunked_context: bool

    @property
    def overcommits(self) -> bool:
        return self.policy == MAX_UTILIZATION

    @property
    def limits_streams(self) -> bool:
        """True if a stream must fit into one prompt, so that it can restart after eviction."""
        return self.overcommits and not self.chunked_context


def scheduling_of(runtime: RuntimeOptions, engine: EngineDescription) -> Scheduling:
    """Return the effective scheduling of a prebuilt engine or of an engine of the CPU.

    Without settings: chunks where the engine supports them, and with chunks `max_utilization`.
    """
    chunked, policy = runtime.enable_chunked_context, runtime.batch_scheduler_policy
    if engine.config is None:
        return Scheduling(policy or MAX_UTILIZATION, chunked is not False)
    can_evict = release(engine.config.assumed_version) >= _EVICTION_SINCE
    plugins = engine.config.plugins
    has_chunks = plugins.paged_context_fmha and not engine.config.recurrent
    if chunked is None:
        chunked = can_evict and has_chunks and not _has_encoder(runtime)
    chunked = chunked and has_chunks
    if not (chunked or can_evict) or _has_encoder(runtime):
        return Scheduling(NO_EVICTION, chunked)
    return Scheduling(policy or (MAX_UTILIZATION if chunked else NO_EVICTION), chunked)


def max_stream_tokens(runtime: RuntimeOptions, engine: EngineDescription) -> int | None:
    """Return the limit of a stream's prompt and answer together, if the policy sets one."""
    if engine.kind is not EngineKind.TENSORRT_LLM:
        return None
    # The last token is never an input of a restart.
    limit = engine.max_input_tokens + 1
    bounded = limit < engine.max_sequence_tokens
    return limit if bounded and scheduling_of(runtime, engine).limits_streams else None


def check_scheduling(runtime: RuntimeOptions, engine: EngineDescription) -> Iterator[Diagnostic]:
    """Yield the consequences of an explicit policy that the executor refuses requests for."""
    if runtime.batch_scheduler_policy != MAX_UTILIZATION or engine.config is None:
        return
    if _has_encoder(runtime):
        yield error(
            "policy_unsupported",
            f"{_POLICY} is {MAX_UTILIZATION}, which TensorRT-LLM refuses for an engine with an "
            f"encoder (encoder_model_path); remove it, or set it to {NO_EVICTION}.",
        )
    limit = max_stream_tokens(runtime, engine)
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


def _has_encoder(runtime: RuntimeOptions) -> bool:
    return bool(runtime.parameters.get("encoder_model_path"))
