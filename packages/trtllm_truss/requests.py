"""What a caller wants, whatever protocol asked for it, and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

REST_OF_CONTEXT = 2**31 - 1
"""`max_tokens` of a caller who set no limit: with `max_tokens_given` false it is cut down."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How the chat template is to write `messages`.

    Attributes:
        tools: JSON descriptions of the functions that the model may call.
        add_generation_prompt: whether to begin the assistant's answer.
        continue_final_message: whether the answer goes on in the last message, so that nothing
            may follow its text in the prompt.
        variables: further names that the template may look at, such as `enable_thinking`.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request with every default filled in.

    Exactly one of `prompt`, `prompt_ids` and `messages` is not None. What an engine cannot do is
    refused by name before anything is sent to it.

    Attributes:
        prompt: the text to continue.
        prompt_ids: the token ids to continue, taken as they are.
        messages: a conversation for the tokenizer's chat template.
        chat: how the template writes `messages`.
        add_special_tokens: whether the tokenizer adds to `prompt` what the model expects around
            a text, such as BOS; false for a prompt that has it already.
        truncate_prompt: ids of the prompt to keep, the last ones; None keeps all.
        max_tokens: tokens to generate.
        max_tokens_given: whether the caller chose `max_tokens`; a default is cut down to what
            the context leaves, a choice is not.
        n: answers to the same prompt. With a seed, each answer's is the seed plus its index.
        stop_words: texts that end the answer just before them.
        include_stop: whether the stop word that ends the answer is part of it after all.
        bad_words: texts that must not be generated.
        beam_width: beams; 1 means no beam search.
        ignore_eos: whether generation goes on past the model's end of sequence.
        skip_special_tokens: whether special tokens do not show in the text.
        logit_bias: what is added to the logits of tokens, by id.
        guide: what the answer must match.
        lora_task_id: the adapter to generate with, as the engine knows it.
        echo: whether the first piece of every answer is the text of its prompt.
        token_details: whether pieces tell their tokens, with log probabilities where the engine
            has them.
        log_probs: the likeliest tokens to tell beside each token, which is told in any case; 0
            asks for its own log probability alone, None for none. Implies `token_details`.
        prompt_details: whether the first `GenerationEnd` tells the tokens of the prompt.
        sampling: how tokens are chosen; without a seed a random one is taken.
        names: what the caller's protocol calls the attributes that it calls otherwise, so that
            refusals name the caller's own fields.
    """

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    chat: ChatFormat = field(default_factory=ChatFormat)
    add_special_tokens: bool = True
    truncate_prompt: int | None = None
    max_tokens: int
    max_tokens_given: bool = True
    n: int = 1
    stop_words: tuple[str, ...] = ()
    include_stop: bool = False
    bad_words: tuple[str, ...] = ()
    beam_width: int = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    guide: Guide | None = None
    lora_task_id: int | None = None
    echo: bool = False
    token_details: bool = False
    log_probs: int | None = None
    prompt_details: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        """What the caller calls an attribute."""
        return self.names.get(attribute, attribute)


class FinishReason(str, enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended it, or a stop word was reached."""
    LENGTH = "length"
    """`max_tokens` were generated."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request took in and gave out."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have stood in a place, with its log probability."""

    id: int
    text: str
    log_prob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer, or of a prompt.

    Attributes:
        id: its id.
        text: what it has added to the text; empty where a later token completes a character,
            and for what does not show.
        log_prob: its log probability; None where the engine does not tell.
        special: whether it is a special token.
        alternatives: the likeliest tokens in its place, the likeliest first, if asked for.
    """

    id: int
    text: str
    log_prob: float | None = None
    special: bool = False
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is certain to be part of an answer.

    Attributes:
        text: never empty, unless `tokens` are told.
        index: the number of the answer in its call: those to the first request come first.
        tokens: the tokens that make it up, if asked for; their texts joined are `text`.
    """

    text: str
    index: int = 0
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The end of an answer: exactly one for each, and nothing of it after.

    Attributes:
        reason: why it ended.
        usage: `completion_tokens` are those of this answer.
        index: the number of the answer in its call.
        stop_word: the stop word that ended it; None if the model did, or `max_tokens`.
        seed: the seed that it was drawn with.
        prompt: the tokens of the prompt, if asked for.
    """

    reason: FinishReason
    usage: Usage
    index: int = 0
    stop_word: str | None = None
    seed: int | None = None
    prompt: tuple[Token, ...] = ()


AnswerItem = TextDelta | GenerationEnd
"""What an answer consists of: any number of deltas and one end."""
