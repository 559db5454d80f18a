"""Generation requests and their answers, independent of the protocol."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trtllm_truss.request_fields import Sampling

REST_OF_CONTEXT = 2**31 - 1
"""`max_tokens` without a limit; cut down, because `max_tokens_given` is false."""

Language = Literal["json_schema", "regex", "ebnf_grammar"]
"""Names of the input `guided_decoding_guide_type`."""

GUIDE_BYTES = "guide_bytes"
"""Parameter of a Triton request: the memory of the compiled guide in bytes, as its check measured
it. The CPU engine then does not check the guide itself."""

UNREPEATABLE = "unrepeatable"
"""Parameter of a Triton request: true if nobody knows its seed. On the CPU engine the rounding of
its answer then depends on other requests."""


class Guide(NamedTuple):
    """A constraint on the whole answer, except for its reasoning.

    Attributes:
        text: a JSON schema, a regular expression or an EBNF grammar whose first rule is `root`.
        fixes_blanks: allow JSON by a schema no blanks between its parts but one after each comma
            and each colon.
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
    """The words around the reasoning at the beginning of an answer.

    Attributes:
        starts: words that begin it. A template may end the prompt with one.
        closing: text that ends it early.
        joint: text between its end and a further text.
        answer: text that begins an answer without tool calls.
        is_single: an answer has at most one reasoning, so that its end is the first of `ends`.
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
        continue_final_message: end the prompt with the text of the last message, which the answer
            continues.
        variables: further template variables, such as `enable_thinking`.
        answer_prefix: text that every answer begins with, after its reasoning. Special tokens in it
            act as such.
        reasoning: the words of the model's reasoning, after which a guide and `answer_prefix`
            begin; None for a model without. Its tokens are counted if its end is one token.
        shows_reasoning_start: begin an answer with the word that begins its reasoning if that is
            the end of the prompt.
        write_call: writes a call by the name of its function and its arguments as JSON, for a chat
            template that shows no calls; None for one JSON object.
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

    Not frozen, like the other large classes of a request: that multiplies the time to create one.

    Exactly one of `prompt`, `prompt_ids` and `messages` is not None.

    Attributes:
        prompt: text to continue.
        prompt_ids: token ids to continue.
        messages: conversation for the tokenizer's chat template; the package `conversation` has its
            keys.
        chat: arguments of the chat template.
        add_special_tokens: add the model's special tokens, such as BOS, to `prompt`; false if it
            contains them.
        truncate_prompt: number of trailing prompt tokens to keep; None keeps all.
        max_tokens: maximum number of tokens to generate, cut down to the rest of the context; 0
            returns the `echo` alone.
        max_tokens_given: the caller set `max_tokens`: more than a context is an error.
        n: number of answers to the prompt. An explicit seed is incremented by the answer's index.
        stop_words: texts that end the answer just before them.
        include_stop: keep the matched stop word in the answer.
        stop_token_ids: token ids that end the answer just before them.
        bad_words: texts that must not be generated.
        beam_width: beams; 1 means no beam search.
        ignore_eos: continue past the model's end of sequence.
        shown_special_tokens: special tokens to keep.
        logit_bias: logit offsets by token id.
        guide: constraint on the answer.
        fixes_blanks: see `Guide`; without effect on a guide that is no schema.
        lora_task_id: LoRA adapter, by the engine's id.
        model: the caller's name of the model; the name of an adapter chooses it.
        echo: start every answer with the text of its prompt; with `log_probs` also with its tokens.
        token_details: attach tokens to every `TextDelta`, with log probabilities if available.
        log_probs: number of alternatives per token; 0 requests the log probability of the token
            only, None requests none. Implies `token_details`.
        top_is_chosen: the only alternative of a token is the chosen one, as in LMI.
        prompt_details: attach the tokens of the prompt to the first `GenerationEnd`.
        counts_only: return the prompt's tokens or their number; it may be empty, or longer than
            the context. With `max_tokens` 0.
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
        """Return False for a request that counts tokens, or repeats its prompt and no more."""
        return self.max_tokens > 0 or self.scores_prompt

    @property
    def scores_prompt(self) -> bool:
        """Return True for log probabilities of the prompt."""
        return self.echo and self.log_probs is not None

    @property
    def shows_tokens(self) -> bool:
        return self.token_details or self.log_probs is not None

    def name(self, attribute: str) -> str:
        """Return the caller's field name of an attribute."""
        return self.names.get(attribute, attribute)


class FinishReason(str, enum.Enum):
    """The reason for the end of an answer."""

    STOP = "stop"
    """End of sequence or stop word."""
    LENGTH = "length"
    """`max_tokens` reached."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request.

    Attributes:
        completion_tokens: generated tokens; those that were put in are not counted.
        reasoning_tokens: of these, the tokens up to the end of the reasoning, or all without an
            end; None if not counted.
        cached_tokens: tokens of the prompt that the engine found in its KV cache; None if it does
            not tell.
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
    """One token of an answer or a prompt.

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
    """Final text of an answer.

    Attributes:
        text: empty only together with `tokens`.
        index: number of the answer in its call, counted over all requests.
        tokens: tokens of `text`, if requested; their texts add up to `text`. Text that was put in
            after the reasoning has none.
        usage: token counts of this answer so far, if requested.
    """

    text: str
    index: int = 0
    tokens: tuple[Token, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The last item of an answer.

    Attributes:
        index: number of the answer in its call.
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
    """Tokens of an answer that its caller decodes.

    Attributes:
        ids: empty only together with `end`.
        index: number of the answer in its call.
        log_probs: one per id, if requested.
        alternatives: pairs of id and log probability for each id in descending order, if requested.
        end: the end of the answer, in its last delta.
    """

    ids: tuple[int, ...]
    index: int = 0
    log_probs: tuple[float, ...] = ()
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    end: GenerationEnd | None = None


AnswerItem = TextDelta | GenerationEnd
"""An item of an answer: any number of deltas, then one end."""
