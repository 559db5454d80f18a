"""Scheduling of an executor and its limits, as parameters.

The CPU engine uses the same parameters as the executor of NVIDIA's backend. Source of its
scheduling, in NVIDIA/TensorRT-LLM: ``fetchNewRequests`` of
``cpp/tensorrt_llm/executor/executorImpl.cpp`` refuses a stream that it may evict and cannot restart
(read near 0.19 and near 1.1; 0.12 to 0.18 are closed source). Up to 0.11 the backend itself
replaces the policy (``model_instance_state.cc`` in triton-inference-server/tensorrtllm_backend,
v0.8.0:164 and v0.11.0:274).
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.releases import rows_for
from trtllm_truss.settings.runtime import PARAMETERS, ParameterValue, RuntimeOptions

MAX_UTILIZATION, NO_EVICTION = "max_utilization", "guaranteed_no_evict"
_POLICY, _CHUNKS = "batch_scheduler_policy", "enable_chunked_context"
_MAX_BEAM_WIDTH = "max_beam_width"


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling of requests by the engine's executor.

    Attributes:
        policy: `max_utilization` pauses requests when the KV cache is full; `guaranteed_no_evict`
            only starts requests that are sure to finish.
        chunked_context: long prompts are processed in chunks.
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


def has_encoder(runtime: RuntimeOptions) -> bool:
    return bool(runtime.parameters.get("encoder_model_path"))


def executor_parameters(
    runtime: RuntimeOptions, scheduling: Scheduling, beam_limit: int, version: str
) -> dict[str, ParameterValue]:
    """Return the model parameters for this scheduling.

    `decoding_mode` is left to the backend, which samples requests with one beam and uses beam
    search for the others. It never mixes widths: a request of another width waits until the running
    ones have finished, and blocks the queue meanwhile. `max_beam_width: 1` avoids that.
    """
    parameters = dict(runtime.parameters)
    parameters.setdefault(_POLICY, scheduling.policy)
    if scheduling.chunked_context:
        parameters.setdefault(_CHUNKS, True)
    if _MAX_BEAM_WIDTH in {row.name for row in rows_for(PARAMETERS, version)}:
        parameters[_MAX_BEAM_WIDTH] = beam_limit
    return parameters
