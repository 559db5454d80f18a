"""Encode prompts and conversations as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

from trtllm_truss.conversation.writing import write_as_json
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import ContextLengthExceeded, InvalidRequest, RequestError
from trtllm_truss.inference.encoding_queue import SHORT_CHARACTERS, Checkpoint, EncodingQueue
from trtllm_truss.literals import counted_tokens
from trtllm_truss.requests import ChatFormat, GenerationRequest, Token
from trtllm_truss.text.template_limits import RENDER_LIMIT_S, SHORT_RENDER_LIMIT_S
from trtllm_truss.text.text_stream import TokenStream
from trtllm_truss.text.tokenizer import TextTokenizer, TooManyTokens

_LONG_CHARACTERS = 2048
"""Prompts of at least this size are encoded in a thread, off the event loop."""

_ITEM_CHARACTERS = 16
"""Estimated size of a message, list or number."""

_COUNTED_ITEMS = 1 << 14
_UNCOUNTED_CHARACTERS = 1 << 20
"""Estimated size of the items beyond those that are counted: counting all would block the event
loop."""

MAX_COUNTED_TOKENS = 1 << 20
"""Maximum tokens of a counted prompt, which may exceed the context; takes half a gigabyte."""

_TAIL_TOKENS = 32
"""Tokens at the end of a prompt that can contain a word that opens reasoning."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """An encoded prompt.

    Attributes:
        ids: at least one.
        text: the text that every choice starts with: the prompt for `echo`, or the end of a chat's
            prompt.
        tokens: the tokens for `prompt_details` or, as in `text`, to score; otherwise empty.
        reasoning: where choices start: inside reasoning, after it, or either.
    """

    ids: list[int]
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: Literal["open", "over", "possible"] = "over"


async def encode_prompt(
    request: GenerationRequest,
    tokenizer: TextTokenizer,
    engine: Engine,
    queue: EncodingQueue,
    *,
    control_tokens: bool = False,
) -> EncodedPrompt:
    """Encode a request's prompt: short ones at once, others in a thread.

    Args:
        control_tokens: interpret special tokens in the text of messages.

    Raises:
        ContextLengthExceeded: the prompt has more tokens than the engine accepts.
        RequestError: the tokenizer cannot encode the prompt, or it is empty.
        QueueFull: too many prompts wait to be encoded.
    """
    chat = request.chat
    decoded = request.prompt_ids if request.echo or request.prompt_details else None
    parts = (request.prompt, request.messages, chat.tools, chat.variables, decoded)
    characters = _estimated_characters([part for part in parts if part])
    alone = nullcontext() if characters <= SHORT_CHARACTERS else queue.alone
    encode = partial(_encode, request, tokenizer, engine, control_tokens, alone)
    if characters < _LONG_CHARACTERS:
        return encode(_go_on)
    return await queue.run(encode, characters)


def _go_on() -> None: ...


def prompt_field(request: GenerationRequest) -> str:
    """Return the caller's name of the prompt field."""
    if request.messages is not None:
        return request.name("messages")
    return request.name("prompt" if request.prompt_ids is None else "prompt_ids")


def _estimated_characters(values: list[Any]) -> int:
    """Return the size of values, exact up to a number of items to limit the cost."""
    characters = items = 0
    while values:
        value = values.pop()
        items += 1
        if isinstance(value, str):
            characters += len(value)
            continue
        characters += _ITEM_CHARACTERS
        if isinstance(value, Mapping):
            values += chain.from_iterable(islice(value.items(), _COUNTED_ITEMS))
        elif isinstance(value, list | tuple):
            values += value[:_COUNTED_ITEMS]
        if items > _COUNTED_ITEMS:
            return characters + _UNCOUNTED_CHARACTERS
    return characters


def _encode(
    request: GenerationRequest,
    tokenizer: TextTokenizer,
    engine: Engine,
    control_tokens: bool,
    alone: AbstractContextManager[Any],
    checkpoint: Checkpoint,
) -> EncodedPrompt:
    field, max_tokens = prompt_field(request), engine.max_input_tokens
    if request.counts_only:
        max_tokens = max(max_tokens, MAX_COUNTED_TOKENS)
    given = request.prompt_ids
    if given is not None and request.truncate_prompt is None and len(given) > max_tokens:
        raise _too_long(request, str(len(given)), engine)  # before reading their values
    try:
        ids = _ids(request, tokenizer, max_tokens, control_tokens, alone, checkpoint)
    except TooManyTokens:
        raise _too_long(request, f"more than {max_tokens}", engine) from None
    if not ids and not request.counts_only:
        raise InvalidRequest(f"{field} has no tokens; send some text.", param=field)
    chat, opening = request.chat, ""
    start, reasoning = _reasoning_at_end(chat, ids, tokenizer)
    if start and chat.shows_reasoning_start:
        opening = start + "\n"
    if chat.answer_prefix and reasoning == "over":
        opening = chat.answer_prefix
        ids += tokenizer.encode(opening, add_special_tokens=False)
    if request.truncate_prompt is not None:
        ids = ids[-request.truncate_prompt :]
    if len(ids) > max_tokens:
        raise _too_long(request, str(len(ids)), engine)
    return EncodedPrompt(
        ids,
        text=_text(request, ids, tokenizer) if request.echo else opening,
        tokens=_tokens(request, ids, tokenizer),
        reasoning=reasoning,
    )


def _reasoning_at_end(
    chat: ChatFormat, ids: list[int], tokenizer: TextTokenizer
) -> tuple[str, Literal["open", "over", "possible"]]:
    """Return the word at the end of a prompt that opens reasoning, and its state."""
    words = chat.reasoning
    if words is None:
        return "", "over"
    tail = tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()
    start = next((word for word in words.starts if tail.endswith(word)), "")
    if start:
        return start, "open"
    is_over = chat.continue_final_message or tail.endswith(words.ends)
    return "", "over" if is_over else "possible"


def _too_long(request: GenerationRequest, tokens: str, engine: Engine) -> RequestError:
    field = prompt_field(request)
    if request.counts_only:
        return InvalidRequest(
            f"{field} is {counted_tokens(tokens)} long; at most {MAX_COUNTED_TOKENS} are "
            "counted. Divide it, and count the parts.",
            param=field,
        )
    return ContextLengthExceeded.describe(
        engine.max_sequence_tokens,
        f"{field} is {counted_tokens(tokens)} long; shorten it to at most "
        f"{engine.max_input_tokens}",
        param=field,
    )


def _ids(
    request: GenerationRequest,
    tokenizer: TextTokenizer,
    max_tokens: int,
    control_tokens: bool,
    alone: AbstractContextManager[Any],
    checkpoint: Checkpoint,
) -> list[int]:
    keep_last = request.truncate_prompt
    if keep_last is not None:
        # A tail beyond the limit is refused like a whole text, whose encoding stops at the limit.
        keep_last = None if keep_last > max_tokens else max(keep_last, _TAIL_TOKENS)
    if request.messages is not None:
        return tokenizer.apply_chat_template(
            request.messages,
            add_generation_prompt=request.chat.add_generation_prompt,
            continue_final_message=request.chat.continue_final_message,
            tools=request.chat.tools,
            variables=request.chat.variables,
            write_call=request.chat.write_call or write_as_json,
            control_tokens=control_tokens,
            max_tokens=max_tokens,
            keep_last=keep_last,
            checkpoint=checkpoint,
            limit_s=SHORT_RENDER_LIMIT_S if checkpoint is _go_on else RENDER_LIMIT_S,
            alone=alone,
        )
    if request.prompt_ids is None:
        return tokenizer.encode(
            request.prompt or "",
            request.add_special_tokens,
            max_tokens=max_tokens,
            keep_last=keep_last,
            checkpoint=checkpoint,
            field=prompt_field(request),
        )
    largest = max(request.prompt_ids, default=0)
    if largest >= tokenizer.vocab_size:
        field = prompt_field(request)
        raise InvalidRequest(
            f"{field} holds the id {largest}; the model's ids end at {tokenizer.vocab_size - 1}.",
            param=field,
        )
    return list(request.prompt_ids)


def _text(request: GenerationRequest, ids: list[int], tokenizer: TextTokenizer) -> str:
    if request.prompt is not None and request.truncate_prompt is None:
        return request.prompt
    return tokenizer.decode(ids, request.skip_special_tokens)


def _tokens(
    request: GenerationRequest, ids: list[int], tokenizer: TextTokenizer
) -> tuple[Token, ...]:
    """Pair each id with its text, including special tokens in `prompt_details`."""
    if not (request.prompt_details or request.scores_prompt):
        return ()
    hides = request.skip_special_tokens and not request.prompt_details
    stream = TokenStream(tokenizer, skip_special_tokens=hides)
    stream.push(ids)
    tokens = stream.tokens
    stream.finish()
    return tuple(
        Token(token_id, text, special=token_id in tokenizer.special_ids)
        for token_id, text in (*tokens, *stream.tokens)
    )
