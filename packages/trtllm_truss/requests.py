"""Generation requests and their output, independent of the protocol."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trtllm_truss.request_fields import Sampling

REST_OF_CONTEXT = 2**31 - 1
"""Used when the request sets no limit; later capped to the context."""

Language = Literal["json_schema", "regex", "ebnf_grammar"]
"""Names of the input `guided_decoding_guide_type`."""

GUIDE_BYTES = "guide_bytes"
"""Parameter of a Triton request: memory of the compiled guide in bytes, as measured by its check.

The CPU engine then does not check the guide itself.
"""

UNREPEATABLE = "unrepeatable"
"""Parameter of a Triton request: true if nobody knows its seed.

On the CPU engine, the rounding of its output then depends on other requests.
"""


class Guide(NamedTuple):
    """A constraint on the whole output, except for its reasoning.

    Attributes:
        text: JSON schema, regular expression, or EBNF grammar whose first rule is `root`.
        fixes_blanks: allow no blanks between the parts of schema-constrained JSON except one after
            each comma and colon.
        is_strict: refuse a schema that the engine would not follow in every part.
        strict_parts: parts of a schema that are refused likewise, each with its name for errors.
    """

    language: Language
    text: str
    fixes_blanks: bool = False
    is_strict: bool = False
    strict_parts: tuple[tuple[str, str], ...] = ()

    def digest(self) -> bytes:
        strict = (str(self.is_strict), *(each for part in self.strict_parts for each in part))
        parts = (self.language, self.text, str(self.fixes_blanks), *strict)
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).digest()


@dataclass(frozen=True)
class ReasoningWords:
    """The words that delimit the reasoning at the start of a choice.

    Attributes:
        starts: words that open it. A template may end the prompt with one.
        closing: text that closes it early.
        joint: text between its end and further text.
        answer: text that starts content without tool calls.
        is_single: a choice has at most one reasoning part, so that it ends at the first of `ends`.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    closing: str = ""
    joint: str = "\n\n"
    answer: str = ""
    is_single: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Arguments of the chat template.

    Attributes:
        tools: JSON descriptions of the functions that the model may call.
        add_generation_prompt: append the header of an assistant message.
        continue_final_message: end the prompt with the text of the last message, which the model
            continues.
        variables: further template variables, such as `enable_thinking`.
        answer_prefix: text that every choice starts with, after its reasoning. Special tokens in it
            act as control tokens.
        reasoning: words of the model's reasoning, after which a guide and `answer_prefix` begin;
            None for a model without reasoning.
        shows_reasoning_start: start a choice with the word that opens its reasoning, if the prompt
            ends with that word.
        write_call: writes a call from the name of its function and its arguments as JSON, for a
            chat template that renders no calls; None for one JSON object.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    answer_prefix: str = ""
    reasoning: ReasoningWords | None = None
    shows_reasoning_start: bool = True
    write_call: Callable[[str, str], str] | None = None


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """A request with every default filled in.

    Not frozen, like the other large classes of a request, because that would multiply the creation
    time.

    Exactly one of `prompt`, `prompt_ids` and `messages` is not None.

    Attributes:
        prompt: text to continue.
        prompt_ids: token ids to continue.
        messages: conversation for the tokenizer's chat template; the package `conversation` defines
            its keys.
        chat: arguments of the chat template.
        add_special_tokens: add the model's special tokens, such as BOS, to `prompt`; false if it
            contains them.
        truncate_prompt: number of trailing prompt tokens to keep; None keeps all.
        max_tokens: maximum number of tokens to generate, capped to the rest of the context; 0
            returns only the `echo`.
        max_tokens_given: the caller set `max_tokens`; more than a context is then an error.
        n: number of choices for the prompt. An explicit seed is incremented by the choice's index.
        stop_words: texts that finish the choice just before them.
        include_stop: keep the matched stop word in the text.
        stop_token_ids: token ids that finish the choice just before them.
        bad_words: texts that must not be generated.
        beam_width: number of beams; 1 means no beam search.
        ignore_eos: continue past the model's EOS token.
        shown_special_tokens: special tokens to keep.
        logit_bias: logit offsets by token id.
        guide: constraint on the output.
        fixes_blanks: see `Guide`; no effect on a guide that is not a schema.
        lora_task_id: LoRA adapter, by the engine's id.
        model: the caller's name of the model; an adapter's name selects the adapter.
        echo: start every choice with the text of its prompt; with `log_probs`, also with its
            tokens.
        token_details: attach tokens to every `TextDelta`, with log probabilities if available.
        log_probs: number of alternatives per token; 0 requests the log probability of the token
            only, None requests none. Implies `token_details`.
        top_is_chosen: the only alternative of a token is the chosen one, as in LMI.
        prompt_details: attach the tokens of the prompt to the first `GenerationEnd`.
        counts_only: return the prompt's tokens or their number; the prompt may be empty or longer
            than the context. Requires `max_tokens` 0.
        running_usage: attach the token counts so far to every `TextDelta`.
        sampling: sampling parameters; a missing seed is drawn at random.
        names: the protocol's field names of attributes, for error messages.
    """

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    chat: ChatFormat = ChatFormat()
    add_special_tokens: bool = True
    truncate_prompt: int | None = None
    max_tokens: int
    max_tokens_given: bool = True
    n: int = 1
    stop_words: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    beam_width: int = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    shown_special_tokens: frozenset[str] = frozenset()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    guide: Guide | None = None
    fixes_blanks: bool = True
    lora_task_id: int | None = None
    model: str | None = None
    echo: bool = False
    token_details: bool = False
    log_probs: int | None = None
    top_is_chosen: bool = False
    prompt_details: bool = False
    counts_only: bool = False
    running_usage: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_engine(self) -> bool:
        """Return False for a request that only counts tokens or repeats its prompt."""
        return self.max_tokens > 0 or self.scores_prompt

    @property
    def scores_prompt(self) -> bool:
        """Return True if log probabilities of the prompt are requested."""
        return self.echo and self.log_probs is not None

    @property
    def shows_tokens(self) -> bool:
        return self.token_details or self.log_probs is not None

    def name(self, attribute: str) -> str:
        """Return the caller's field name of an attribute."""
        return self.names.get(attribute, attribute)


class FinishReason(str, enum.Enum):
    """Why a choice finished."""

    STOP = "stop"
    """EOS token or stop word."""
    LENGTH = "length"
    """`max_tokens` reached."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request.

    Attributes:
        completion_tokens: generated tokens; inserted tokens are not counted.
        reasoning_tokens: those up to the end of the reasoning, or all if it has no end; None if not
            counted.
        cached_tokens: prompt tokens found in the engine's KV cache; None if it does not report
            them.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate token with its log probability."""

    id: int
    text: str
    log_prob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a choice or a prompt.

    Attributes:
        text: text added by this token; empty for hidden tokens and for incomplete characters.
        log_prob: log probability; None if unknown.
        alternatives: the most likely tokens at this position in descending order, if requested.
    """

    id: int
    text: str
    log_prob: float | None = None
    special: bool = False
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Final text of a choice.

    Attributes:
        text: empty only together with `tokens`.
        index: number of the choice in its call, counted over all requests.
        tokens: tokens of `text`, if requested; their texts add up to `text`. Text inserted after
            the reasoning has none.
        usage: token counts of this choice so far, if requested.
    """

    text: str
    index: int = 0
    tokens: tuple[Token, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The last item of a choice.

    Attributes:
        index: number of the choice in its call.
        prompt: tokens of the prompt, if requested.
    """

    reason: FinishReason
    usage: Usage
    index: int = 0
    stop_word: str | None = None
    seed: int | None = None
    prompt: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Tokens of a choice that the caller decodes.

    Attributes:
        ids: empty only together with `end`.
        index: number of the choice in its call.
        log_probs: one per id, if requested.
        alternatives: pairs of id and log probability for each id in descending order, if requested.
        end: end of the choice, in its last delta.
    """

    ids: tuple[int, ...]
    index: int = 0
    log_probs: tuple[float, ...] = ()
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    end: GenerationEnd | None = None


AnswerItem = TextDelta | GenerationEnd
"""An item of a choice: any number of deltas, then one end."""
