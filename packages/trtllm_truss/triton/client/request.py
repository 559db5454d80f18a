"""Requests to the engine and its responses, in token ids.

Up to 0.9 a request's id is the number that its text begins with (``stoul``): 0.7 refuses a text
without one, 0.8 and 0.9 take its hash. A number in flight is refused, and ``stop`` ends the request
that has the number, whoever sent it. Later releases take any text. Source:
``inflight_batcher_llm/src/utils.cc:142-174`` and ``work_items_queue.cc:59`` in
triton-inference-server/tensorrtllm_backend, v0.7.0 to v0.9.0; ``model_instance_state.cc``
(``mTritonRequestIdToRequestIds``) from v0.10.0 on.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trtllm_truss.releases.contract import CacheReport
from trtllm_truss.releases.facts import holds
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import Guide


def takes_numbers_only(version: str | None) -> bool:
    """Return True for TensorRT-LLM versions that read ids as numbers; None is unknown."""
    return not holds("ids_are_text", version, unknown=True)


def random_number() -> str:
    """Return an id that every release takes, and that no other request has."""
    return str(secrets.randbelow(2**64 - 1) + 1)


@dataclass(slots=True)
class EngineRequest:
    """One generation.

    Attributes:
        request_id: shown in Triton's log; unique among the requests in flight. The client sends a
            number instead to releases that need one.
        input_ids: the prompt, at least one id.
        max_tokens: maximum of generated tokens; the prompt does not count.
        end_id: generation ends before this id; without it only `max_tokens` ends it.
        pad_id: fills up shorter beams.
        stop_words: generation ends after any of these id sequences, which stay in the output.
        bad_words: id sequences that are never generated.
        streaming: one chunk per step; otherwise a single chunk at the end.
        beam_width: beams; only the best one is returned.
        sampling: sampling parameters.
        return_log_probs: include log probabilities in chunks.
        top_log_probs: alternatives per token to include with them; the LLM API only.
        guide: constraint on the answer; requires an `end_id`.
        guide_bytes: memory of the compiled guide. With it the CPU engine does not check the guide,
            and sends empty chunks while the guide compiles.
        lora_task_id: the adapter to generate with, which the engine has loaded before.
        logit_bias: logit offsets by token id.
        vocab_size: of the engine, for `logit_bias`.
        cache_report: ask for it; None if the engine has none.
    """

    request_id: str
    input_ids: Sequence[int]
    max_tokens: int
    end_id: int | None = None
    pad_id: int | None = None
    stop_words: Sequence[Sequence[int]] = ()
    bad_words: Sequence[Sequence[int]] = ()
    streaming: bool = True
    beam_width: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    return_log_probs: bool = False
    top_log_probs: int = 0
    guide: Guide | None = None
    guide_bytes: int | None = None
    lora_task_id: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    vocab_size: int = 0
    cache_report: CacheReport | None = None


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """One response of the engine.

    Attributes:
        token_ids: tokens new since the last chunk, possibly none.
        final: the last chunk; a complete stream has exactly one.
        cum_log_prob: log probability of everything generated so far, if requested.
        log_probs: one per token generated so far (not only the new ones), if requested.
        alternatives: likeliest ids with their log probabilities, likewise.
        cached: part of the prompt found in the KV cache, in units of the `CacheReport`; None
            before the engine has told.
    """

    token_ids: tuple[int, ...]
    final: bool
    cum_log_prob: float | None = None
    log_probs: tuple[float, ...] = ()
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached: int | None = None
