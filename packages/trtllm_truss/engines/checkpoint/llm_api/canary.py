"""The request with which the backend asks whether the engine still generates."""

from __future__ import annotations

import numpy as np

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.backends.token_model.sampling import ENGINE_DEFAULTS, Sampling
from trtllm_truss.engines.checkpoint.llm_api.request import LlmRequest


def canary_request(beam_width: int) -> LlmRequest:
    """Return a request for one token after one token."""
    return LlmRequest(
        GenerationRequest(
            id="canary",
            prompt=np.zeros(1, np.int64),
            max_new_tokens=1,
            end_id=None,
            stop_words=(),
            sampling=Sampling(**ENGINE_DEFAULTS, beam_width=beam_width),
            guide=None,
            guide_bytes=None,
            streaming=True,
            echo_prompt=False,
            outputs=frozenset(("output_ids", "sequence_length")),
        )
    )
