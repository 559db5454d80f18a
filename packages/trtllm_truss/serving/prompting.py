"""What a caller sends to be continued becomes token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.serving.request import GenerationRequest, Token
from trtllm_truss.text.token_stream import TokenStream
from trtllm_truss.text.tokenizer import TextTokenizer

_LONG_PROMPT_CHARACTERS = 4096
"""From here on a prompt is encoded in a thread: the event loop must not wait for it."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the engine gets it.

    Attributes:
        ids: at least one.
        text: its text, if answers are to begin with it.
        tokens: its tokens, if they are to be told.
    """

    ids: list[int]
    text: str = ""
    tokens: tuple[Token, ...] = ()


async def encode_prompt(request: GenerationRequest, tokenizer: TextTokenizer) -> EncodedPrompt:
    """Encodes the prompt of a request.

    Raises:
        RequestError: the tokenizer cannot, or there is nothing in it.
    """
    size = len(request.prompt or request.prompt_ids or "") + sum(
        len(str(message.get("content", ""))) for message in request.messages or ()
    )
    if size < _LONG_PROMPT_CHARACTERS:
        return _encode(request, tokenizer)
    return await asyncio.to_thread(_encode, request, tokenizer)


def prompt_field(request: GenerationRequest) -> str:
    """The caller's name of the field that holds the prompt."""
    if request.messages is not None:
        return request.name("messages")
    return request.name("prompt" if request.prompt_ids is None else "prompt_ids")


def _encode(request: GenerationRequest, tokenizer: TextTokenizer) -> EncodedPrompt:
    ids = _ids(request, tokenizer)
    if not ids:
        field = prompt_field(request)
        raise InvalidRequest(f"{field} has no tokens; send some text.", param=field)
    if request.truncate_prompt is not None:
        ids = ids[-request.truncate_prompt :]
    return EncodedPrompt(
        ids,
        text=_text(request, ids, tokenizer) if request.echo else "",
        tokens=_tokens(ids, tokenizer) if request.prompt_details else (),
    )


def _ids(request: GenerationRequest, tokenizer: TextTokenizer) -> list[int]:
    if request.messages is not None:
        return tokenizer.apply_chat_template(
            request.messages,
            add_generation_prompt=request.chat.add_generation_prompt,
            continue_final_message=request.chat.continue_final_message,
            tools=request.chat.tools,
            variables=request.chat.variables,
        )
    if request.prompt_ids is None:
        return tokenizer.encode(request.prompt or "", request.add_special_tokens)
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


def _tokens(ids: list[int], tokenizer: TextTokenizer) -> tuple[Token, ...]:
    """Each with its text, special ones too: that is what the prompt is made of."""
    stream = TokenStream(tokenizer, skip_special_tokens=False)
    stream.push(ids)
    told = stream.tokens
    stream.finish()
    return tuple(
        Token(token_id, text, special=token_id in tokenizer.special_ids)
        for token_id, text in (*told, *stream.tokens)
    )
