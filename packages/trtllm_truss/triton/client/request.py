"""What the engine is asked for and what it gives back, in token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtllm_truss.requests import Guide, Sampling


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation.

    Attributes:
        request_id: shown in Triton's log; unique among the requests in flight.
        input_ids: the prompt, at least one id.
        max_tokens: tokens to generate at most; the prompt does not count.
        end_id: generation ends before this id. The engine never stops by itself without it.
        pad_id: fills up shorter beams.
        stop_words: generation ends after any of these id sequences, which stay in the output.
        bad_words: id sequences that are never generated.
        streaming: one chunk per step; otherwise a single chunk at the end.
        beam_width: beams; only the best one is given back.
        sampling: how tokens are chosen.
        return_log_probs: chunks carry log probabilities.
        guide: what the answer must match. It needs an `end_id`, by which it ends.
        guide_is_checked: skips the CPU engine's own check; it then also sends empty chunks while
            the guide compiles.
        lora_task_id: the adapter to generate with, which the engine has loaded before.
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
    guide: Guide | None = None
    guide_is_checked: bool = False
    lora_task_id: int | None = None


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """One response of the engine.

    Attributes:
        token_ids: tokens new since the last chunk, possibly none.
        final: nothing follows; exactly one chunk of a complete stream has it.
        cum_log_prob: log probability of everything generated so far, if asked for.
        log_probs: one per token generated so far (not only the new ones), if asked for.
    """

    token_ids: tuple[int, ...]
    final: bool
    cum_log_prob: float | None = None
    log_probs: tuple[float, ...] = ()
