"""What the engine is asked for and what it gives back, in token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GuideKind = Literal["json", "json_schema", "regex", "ebnf_grammar"]


@dataclass(frozen=True, slots=True)
class Guide:
    """What the whole answer must match.

    Attributes:
        kind: the language of `text`, by the backend's name for it. `json` is any JSON object or
            array, without a text.
        text: a JSON schema, a regular expression or an EBNF grammar whose first rule is `root`.
    """

    kind: GuideKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. A field that is None is not sent, so the engine's default holds.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: tokens to choose among, the likeliest first.
        top_p: probability that the tokens to choose among have together.
        repetition_penalty: divides the logits of tokens that occurred; 1 is none.
        presence_penalty: taken off the logits of tokens that occurred.
        frequency_penalty: taken off once for each time that they did.
        length_penalty: exponent of the length in beam search.
        min_tokens: tokens before which the answer does not end.
        seed: of the random numbers; without it the engine uses a constant.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    min_tokens: int | None = None
    seed: int | None = None


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
    sampling: Sampling = Sampling()
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
