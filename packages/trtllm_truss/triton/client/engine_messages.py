"""Requests to the engine and its responses, in token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trtllm_truss.releases import CacheReport
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import Guide


@dataclass(slots=True)
class EngineRequest:
    """One request to the engine.

    Attributes:
        request_id: shown in Triton's log; unique among the requests in flight. The client sends a
            number instead to releases that need one.
        input_ids: the prompt, at least one id.
        max_tokens: maximum number of generated tokens; the prompt is not counted.
        end_id: generation stops before this id; without it, only `max_tokens` stops it.
        pad_id: fills shorter beams.
        stop_words: generation stops after any of these id sequences, which stay in the output.
        bad_words: id sequences that are never generated.
        streaming: one chunk per step; otherwise a single chunk at the end.
        beam_width: beams; only the best one is returned.
        return_log_probs: include log probabilities in chunks.
        top_log_probs: alternatives per token to include with them; this project's backends only.
        prompt_log_probs: include those of the prompt too; likewise.
        logits: compute both from the logits of NVIDIA's backend, of the generated tokens or of the
            prompt; the prompt's only without `streaming` and for one token.
        guide: constraint on the answer; requires an `end_id`.
        guide_bytes: memory of the compiled guide. If set, the CPU engine does not check the guide,
            and sends empty chunks while the guide compiles.
        is_repeatable: False if nobody can request the same output again, so that it may depend on
            concurrent requests.
        lora_task_id: the adapter to generate with; the engine has loaded it before.
        logit_bias: logit offsets by token id.
        vocab_size: vocabulary size of the engine, for `logit_bias` and `logits`.
        cache_report: report to request; None if the engine has none.
        trace_headers: W3C headers of the trace to which the engine adds its own spans.
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
    prompt_log_probs: bool = False
    logits: Literal["generation", "context"] | None = None
    guide: Guide | None = None
    guide_bytes: int | None = None
    is_repeatable: bool = True
    lora_task_id: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    vocab_size: int = 0
    cache_report: CacheReport | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def logits_tokens(self) -> int:
        """Number of tokens whose logits are in memory at once."""
        if self.logits is None:
            return 0
        return max(len(self.input_ids) if self.prompt_log_probs else 0, self.max_tokens)


class Logits(NamedTuple):
    """Logits of one response; see `logits`.

    Attributes:
        values: float32, row by row.
        rows: number of tokens.
        width: numbers per row, with padding.
    """

    values: bytes | memoryview
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """One response of the engine.

    Attributes:
        token_ids: tokens new since the last chunk, possibly none.
        final: the last chunk; a complete stream has exactly one.
        cum_log_prob: log probability of everything generated so far, if requested.
        log_probs: one per token generated so far (not only the new ones), if requested.
        alternatives: likeliest ids with their log probabilities, likewise.
        prompt_log_probs: one per token of the prompt but its first, if requested.
        prompt_alternatives: as `alternatives`, for the prompt.
        cached: part of the prompt found in the KV cache, in units of the `CacheReport`; None until
            the engine reports it.
        logits: logits from which `log_probs` and `alternatives` are still to be computed.
    """

    token_ids: tuple[int, ...]
    final: bool
    cum_log_prob: float | None = None
    log_probs: tuple[float, ...] = ()
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    prompt_log_probs: tuple[float, ...] = ()
    prompt_alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached: int | None = None
    logits: Logits | None = None
