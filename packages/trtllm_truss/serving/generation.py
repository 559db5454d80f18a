"""One request's life: checked against the engine, sent to it, and turned back into text."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from trtllm_truss.engines.inspection import Engine, EngineKind
from trtllm_truss.errors import ContextLengthExceeded, InvalidRequest
from trtllm_truss.serving.activity import Activity
from trtllm_truss.serving.request import Finish, FinishReason, GenerationRequest, Piece, Usage
from trtllm_truss.text.engine_hints import engine_stop_hints
from trtllm_truss.text.text_stream import TextStream
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client import TritonClient
from trtllm_truss.triton.request import EngineRequest, Sampling

_LONG_PROMPT_CHARACTERS = 4096
"""From here on a prompt is encoded in a thread: the event loop must not wait for it."""


class Generator:
    """Answers requests with one engine and its tokenizer."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: TextTokenizer,
        connect: Callable[[], TritonClient],
        activity: Activity,
    ) -> None:
        """Binds engine and tokenizer.

        Args:
            engine: what its folder says of it.
            tokenizer: the one that it was trained with.
            connect: gives the connection to the engine as it runs now, or raises
                EngineUnavailable.
            activity: is told of requests and of the engine's answers.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._connect = connect
        self._activity = activity

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece | Finish, None]:
        """The answer, piece by piece, and exactly one `Finish` as its last item.

        Closing the generator, or cancelling its consumer, cancels the request in the engine.

        Raises:
            RequestError: the request does not fit this engine; nothing was sent to it.
            TrussError: the engine refused, failed or went away; no `Finish` came.
        """
        end_ids = self._end_ids(request)
        engine_request = await self._engine_request(request, end_ids)
        text = TextStream(self._tokenizer, request.stop_words)
        generated, ended = 0, False
        async with aclosing(self._connect().generate(engine_request)) as answer:
            async for chunk in self._activity.watched(answer):
                ids = chunk.token_ids
                if ids and ids[-1] in end_ids:  # all but the first one stay in the output
                    ids, ended = ids[:-1], True
                generated += len(ids)
                piece = text.push(ids)
                if piece.text:
                    yield Piece(piece.text)
                if piece.stopped or ended:
                    break
        self._activity.request_answered()
        if tail := text.finish():
            yield Piece(tail)
        cut_short = generated >= engine_request.max_tokens and not (text.stopped or ended)
        yield Finish(
            FinishReason.LENGTH if cut_short else FinishReason.STOP,
            Usage(len(engine_request.input_ids), generated),
        )

    def _end_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        """The ids that end this answer and are not part of it.

        Beside the model's own, a stop word that is a special token: it never shows in the text.
        """
        eos_ids = () if request.ignore_eos else self._tokenizer.eos_ids
        alone = (self._tokenizer.encode(word, False) for word in request.stop_words)
        special = (ids[0] for ids in alone if len(ids) == 1)
        named = (token_id for token_id in special if token_id in self._tokenizer.special_ids)
        return tuple(dict.fromkeys((*eos_ids, *named)))

    async def _engine_request(
        self, request: GenerationRequest, end_ids: tuple[int, ...]
    ) -> EngineRequest:
        self._refuse_unsupported(request)
        size = len(request.prompt or "") + sum(
            len(str(message.get("content", ""))) for message in request.messages or ()
        )
        if size < _LONG_PROMPT_CHARACTERS:
            input_ids = self._encode(request)
        else:
            input_ids = await asyncio.to_thread(self._encode, request)
        return EngineRequest(
            request_id=uuid.uuid4().hex,
            input_ids=input_ids,
            max_tokens=self._tokens_to_generate(request, len(input_ids)),
            end_id=end_ids[0] if end_ids else None,
            pad_id=self._tokenizer.pad_id,
            # The backend knows one end id only; further ones travel as stop words of one token.
            stop_words=[
                *([end_id] for end_id in end_ids[1:]),
                *engine_stop_hints(self._tokenizer, request.stop_words),
            ],
            bad_words=self._bad_word_ids(request.bad_words),
            beam_width=request.beam_width,
            sampling=_with_seed(request.sampling),
        )

    def _encode(self, request: GenerationRequest) -> list[int]:
        if request.messages is not None:
            return self._tokenizer.apply_chat_template(request.messages)
        return self._tokenizer.encode(request.prompt or "")

    def _tokens_to_generate(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """`max_tokens`, cut down to the context only where the caller did not choose it."""
        engine = self._engine
        field = "prompt" if request.messages is None else "messages"
        if prompt_tokens == 0:
            raise InvalidRequest(f"{field} has no tokens; send some text.", param=field)
        if prompt_tokens > engine.max_input_tokens:
            raise ContextLengthExceeded(
                f"{field} is {prompt_tokens} tokens long; this engine takes at most "
                f"{engine.max_input_tokens}. Shorten it.",
                param=field,
            )
        room = engine.max_sequence_tokens - prompt_tokens
        if request.max_tokens <= room:
            return request.max_tokens
        if not request.max_tokens_given:
            return room
        raise ContextLengthExceeded(
            f"max_tokens is {request.max_tokens}; with a {field} of {prompt_tokens} tokens this "
            f"engine's context of {engine.max_sequence_tokens} leaves room for {room}. Lower "
            f"max_tokens or shorten {field}.",
            param="max_tokens",
        )

    def _refuse_unsupported(self, request: GenerationRequest) -> None:
        if request.beam_width > self._engine.max_beam_width:
            raise InvalidRequest(
                f"beam_width is {request.beam_width}; this engine has at most "
                f"{self._engine.max_beam_width}. Lower it.",
                param="beam_width",
            )
        if request.bad_words and self._engine.kind is EngineKind.CPU:
            raise InvalidRequest(
                "bad_words is not supported by the CPU engine; leave it out.", param="bad_words"
            )

    def _bad_word_ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """Each word as it is written at the start of a text and after a space."""
        spellings = [spelling for word in words for spelling in (word, f" {word}")]
        return [
            self._tokenizer.encode(spelling, add_special_tokens=False) for spelling in spellings
        ]


def _with_seed(sampling: Sampling) -> Sampling:
    """A seed left out is a constant to the engine: every answer would be the same."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbits(63))
