"""The responses of one generation as they arrive."""

from __future__ import annotations

import asyncio
import copy
import struct
from array import array
from collections.abc import Callable

from google.protobuf.message import DecodeError

from trtllm_truss.errors import EngineUnavailable, InternalError, TrussError
from trtllm_truss.triton.client.failures import (
    StatusCode,
    from_status,
    from_stream_text,
    unavailable,
)
from trtllm_truss.triton.client.tensors import EngineChunk, decode_response, pack_ids, unread_bytes
from trtllm_truss.triton.protobuf import service_pb2

_parse = service_pb2.ModelStreamInferResponse.FromString
_ID = struct.Struct("<i")
_ID_BYTES = _ID.size
_FINAL_CHUNK = EngineChunk((), final=True)
_NEVER = float("inf")
_MOST_KINDS = 8
"""Sizes of messages, in tokens, that a reader caches."""


def _nothing() -> None: ...


class ResponseStream:
    """Collects tokens as they arrive and returns them together, to one reader.

    A token costs four bytes until it is read, so an unread stream is bounded by the request's
    `max_tokens`. No task wakes for a token unless the reader waits for one.

    Args:
        on_end: called once, when the engine is done, however slowly the stream is read.
        on_heartbeat: called at each response without tokens: an empty one, or an error other than
            EngineUnavailable.
        request_id: id of the request; the response of another one is an error.
        like: reader of an earlier request.

    Attributes:
        began: True once a response has arrived.
        over: True once the server has ended the request or the call.
        reader: parses the responses.
        stopping: stops the request, which was abandoned before its end; else None.
    """

    def __init__(
        self,
        on_end: Callable[[], None] | None = None,
        on_heartbeat: Callable[[], None] | None = None,
        *,
        request_id: str | None = None,
        like: ResponseReader | None = None,
    ) -> None:
        self._on_end = on_end or _nothing
        self._on_heartbeat = on_heartbeat or _nothing
        self._loop = asyncio.get_running_loop()
        self.reader = ResponseReader(request_id, like)
        self._tokens = array("i")
        self._log_probs: tuple[float, ...] = ()
        self._alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
        self._prompt_log_probs: tuple[float, ...] = ()
        self._prompt_alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
        self._cum_log_prob: float | None = None
        self._cached: int | None = None
        self._final = False
        self._failure: TrussError | None = None
        self.began = self.over = False
        self.stopping: asyncio.Task[None] | None = None
        self._token_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self, not_before: float = 0.0, deadline: float = _NEVER) -> EngineChunk:
        """Wait for tokens, and return all that have arrived since the last call.

        Times are those of the event loop's clock. After a cancellation it may be called again.

        Args:
            not_before: collect tokens until then; the end of the stream is returned at once.
            deadline: for the first token.

        Returns:
            At least one token, or the final chunk; after that it must not be called again.

        Raises:
            TimeoutError: no token arrived until `deadline`.
            TrussError: the engine refused, failed or exited. Tokens that arrived before are
                returned first.
        """
        while not self._is_decided():
            now = self._loop.time()
            if self._tokens:
                if now >= not_before:
                    break
                await self._woken(not_before)
            else:
                if now >= deadline:
                    raise TimeoutError
                await self._woken(deadline, token_at=not_before)
        if self._failure is not None and not self._tokens:
            # A copy: its traceback would tie the prompt to `self` until the next collection.
            raise copy.copy(self._failure)
        chunk = EngineChunk(
            tuple(self._tokens),
            self._final,
            cum_log_prob=self._cum_log_prob,
            log_probs=self._log_probs,
            alternatives=self._alternatives,
            prompt_log_probs=self._prompt_log_probs,
            prompt_alternatives=self._prompt_alternatives,
            cached=self._cached,
        )
        del self._tokens[:]
        return chunk

    async def wait_for_end(self, within_s: float) -> bool:
        """Wait until the server has ended the request; return False if it has not in time."""
        deadline = self._loop.time() + within_s
        while not self.over and self._loop.time() < deadline:
            await self._woken(deadline)
        return self.over

    def message(self, payload: bytes) -> bool:
        """Take a response; return True if it is the last one of the request."""
        if self._is_decided():
            return False
        self.began = True
        if not self.reader.read_tokens(payload, self._tokens):
            self._read(payload)
            if not isinstance(self._failure, EngineUnavailable):
                self._on_heartbeat()
        if self._is_decided():
            self._on_end()
            self._wake()
        elif self._token_at < _NEVER:
            self._wake_at(self._token_at)
            self._token_at = _NEVER
        return self._final

    def ended(self, status: StatusCode, details: str) -> None:
        self.over = True
        if not self._is_decided():
            self._failure = (
                unavailable("The engine ended its answer without finishing it.")
                if status is StatusCode.OK
                else from_status(status, details)
            )
            self._on_end()
        self._wake()

    @property
    def unread(self) -> int:
        """Return the number of tokens that arrived and were not returned by `next`."""
        return len(self._tokens)

    def _is_decided(self) -> bool:
        return self._final or self._failure is not None

    def _read(self, payload: bytes) -> None:
        try:
            chunk = self.reader.read(payload)
        except TrussError as failure:
            self._failure = failure
            self.over = True
            return
        except (ValueError, DecodeError) as error:
            self._failure = InternalError(f"the engine's response cannot be read: {error}")
            return
        self._tokens.extend(chunk.token_ids)
        self._final = self.over = chunk.final
        if self._cached is None:  # an engine may count again when it resumes an evicted request
            self._cached = chunk.cached
        if chunk.cum_log_prob is not None:
            self._cum_log_prob = chunk.cum_log_prob
            # The C++ backend sends the whole list every time; others send only new values.
            whole = len(chunk.log_probs) >= len(self._log_probs) + len(chunk.token_ids)
            self._log_probs = chunk.log_probs if whole else self._log_probs + chunk.log_probs
            self._alternatives += chunk.alternatives
        if chunk.prompt_log_probs:
            self._prompt_log_probs = chunk.prompt_log_probs
            self._prompt_alternatives = chunk.prompt_alternatives

    async def _woken(self, at: float, token_at: float = _NEVER) -> None:
        """Sleep until `at` or the end; a token ends the sleep, but not before `token_at`."""
        self._token_at = token_at
        self._waiter = self._loop.create_future()
        self._wake_at(at)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._token_at = _NEVER
            if self._timer is not None:
                self._timer.cancel()

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at <= self._loop.time():
            self._wake()
        elif at < _NEVER:
            self._timer = self._loop.call_at(at, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ResponseReader:
    """Parses the serialized ``ModelStreamInferResponse`` messages of one call.

    While tokens stream, a message differs from an earlier one with as many tokens in their bytes
    alone. The first one, and the last one with or without a token, differ from those of another
    request in the bytes of the id too. Such a message is recognised by its bytes and not parsed: a
    tenth of the time. One that tells of the KV cache is recognised within its request only, and by
    its bytes before the metrics that nothing reads: speculation changes them at each step.

    Args:
        request_id: the only id accepted; None accepts any.
        like: reader of an earlier request, whose messages are likely to be alike.
    """

    __slots__ = ("_around", "_final", "_last", "_own", "_request_id")

    def __init__(self, request_id: str | None = None, like: ResponseReader | None = None) -> None:
        self._request_id = request_id
        # Bytes before and after the tokens, and the number of further ones; by the size in bytes.
        self._around: dict[int, tuple[bytes, bytes, int]] = {}
        self._own: set[int] = set()  # sizes of those that another request must parse
        self._last = b"", b""  # bytes before and after the token of a final message
        self._final: bytes | None = None
        if like is not None and request_id and like._request_id:
            ids = like._request_id.encode(), request_id.encode()
            if len(ids[0]) == len(ids[1]):
                self._around = {
                    size: (head.replace(*ids), tail.replace(*ids), unread)
                    for size, (head, tail, unread) in like._around.items()
                    if size not in like._own
                }
                self._last = like._last[0].replace(*ids), like._last[1].replace(*ids)
                self._final = like._final and like._final.replace(*ids)

    def read_tokens(self, payload: bytes, into: array[int]) -> bool:
        """Append the tokens of a message whose other bytes are known; return False for others."""
        around = self._around.get(len(payload))
        if around is None:
            return False
        head, tail, unread = around
        end = len(payload) - len(tail) - unread
        if not (payload.startswith(head) and payload.startswith(tail, end)):
            return False
        into.frombytes(payload[len(head) : end])
        return True

    def read(self, payload: bytes) -> EngineChunk:
        """Parse any message.

        Raises:
            TrussError: the message carries an error.
            ValueError: its tensors do not fit together, or it belongs to another request.
        """
        if payload == self._final:
            return _FINAL_CHUNK
        head, tail = self._last
        token = payload[len(head) : len(head) + _ID_BYTES]
        if head and payload == head + token + tail and len(token) == _ID_BYTES:
            return EngineChunk(_ID.unpack(token), final=True)
        message = _parse(payload)
        if message.error_message:
            raise from_stream_text(message.error_message)
        response = message.infer_response
        if self._request_id is not None and response.id != self._request_id:
            raise ValueError(f"its id is {response.id!r} instead of {self._request_id!r}")
        chunk = decode_response(response)
        self._remember(payload, chunk, 0 if chunk.cached is None else unread_bytes(response))
        return chunk

    def _remember(self, payload: bytes, chunk: EngineChunk, unread: int) -> None:
        if chunk == _FINAL_CHUNK:
            self._final = payload
        if not chunk.token_ids or chunk.log_probs:
            return
        tokens, end = pack_ids(chunk.token_ids), len(payload) - unread
        start = payload.find(tokens)
        if start != payload.rfind(tokens, 0, end):  # they cannot be told from the rest
            return
        head, tail = payload[:start], payload[start + len(tokens) : end]
        if not chunk.final and len(self._around) < _MOST_KINDS:
            self._around[len(payload)] = head, tail, unread
            (self._own.discard if chunk.cached is None else self._own.add)(len(payload))
        elif chunk.final and len(chunk.token_ids) == 1 and chunk.cached is None:
            self._last = head, tail
