"""One answer of the engine while it arrives."""

from __future__ import annotations

import asyncio
import copy
from array import array
from collections.abc import Callable

from google.protobuf.message import DecodeError
from grpc import StatusCode

from trtllm_truss.errors import EngineUnavailable, InternalError, TrussError
from trtllm_truss.triton.client.failures import from_status, unavailable
from trtllm_truss.triton.client.request import EngineChunk
from trtllm_truss.triton.client.responses import ResponseReader


def _nothing() -> None:
    """For whom the end is of no interest."""


class ResponseStream:
    """Collects tokens as they come and gives them out together, to one reader.

    A token costs four bytes until it is read, so an answer that nobody reads is bounded by what
    the engine may generate. No task wakes for a token that nobody waits for.

    Attributes:
        over: whether the server has ended the call: nothing more can come.
    """

    def __init__(
        self,
        on_end: Callable[[], None] | None = None,
        on_sign: Callable[[], None] | None = None,
    ) -> None:
        """An answer of which nothing has come yet.

        Args:
            on_end: called once, as soon as the engine is done with it, however slowly it is read.
            on_sign: called at each response without tokens: an empty one, or an error other than
                EngineUnavailable.
        """
        self._on_end = on_end or _nothing
        self._on_sign = on_sign or _nothing
        self._loop = asyncio.get_running_loop()
        self._reader = ResponseReader()
        self._tokens = array("i")
        self._log_probs: tuple[float, ...] = ()
        self._cum_log_prob: float | None = None
        self._final = False
        self._failure: TrussError | None = None
        self.over = False
        self._wake_for_tokens = False
        self._waiter: asyncio.Future[None] | None = None

    async def next(self, not_before: float = 0.0, deadline: float = float("inf")) -> EngineChunk:
        """Waits for tokens, and gives all that have come since the last time.

        Times are those of the event loop's clock. May be cancelled, and called again then.

        Args:
            not_before: until then tokens are collected; the end of the answer is given at once.
            deadline: how long to wait for the first token.

        Returns:
            At least one token, or the final chunk; after that it must not be called again.

        Raises:
            TimeoutError: no token came until `deadline`.
            TrussError: the engine refused, failed or went away. Tokens that came before are given
                first.
        """
        while not self._is_decided() and self._loop.time() < not_before:
            await self._woken(not_before, for_tokens=False)
        while not self._is_decided() and not self._tokens:
            if self._loop.time() >= deadline:
                raise TimeoutError
            await self._woken(deadline, for_tokens=True)
        if self._failure is not None and not self._tokens:
            # A copy: its traceback would tie the prompt to `self` until the next collection.
            raise copy.copy(self._failure)
        chunk = EngineChunk(
            tuple(self._tokens),
            self._final,
            cum_log_prob=self._cum_log_prob,
            log_probs=self._log_probs,
        )
        del self._tokens[:]
        return chunk

    async def comes_to_end(self, within_s: float) -> bool:
        """Waits until the server has ended the call, and tells whether it did so in time."""
        deadline = self._loop.time() + within_s
        while not self.over and self._loop.time() < deadline:
            await self._woken(deadline, for_tokens=False)
        return self.over

    def message(self, payload: bytes) -> None:
        """Takes in a response, as a `Receiver`."""
        if self._is_decided():
            return
        if not self._reader.read_token(payload, self._tokens):
            self._read(payload)
            if not isinstance(self._failure, EngineUnavailable):
                self._on_sign()
        if self._is_decided():
            self._on_end()
            self._wake()
        elif self._wake_for_tokens:
            self._wake()

    def ended(self, status: StatusCode, details: str) -> None:
        """Notes the end of the call, as a `Receiver`."""
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
        """Tokens that have come and were not given out."""
        return len(self._tokens)

    @property
    def is_final(self) -> bool:
        """Whether the engine has given its last token; the call itself ends a moment later."""
        return self._final

    def _is_decided(self) -> bool:
        return self._final or self._failure is not None

    def _read(self, payload: bytes) -> None:
        try:
            chunk = self._reader.read(payload)
        except TrussError as failure:
            self._failure = failure
            return
        except (ValueError, DecodeError) as error:
            self._failure = InternalError(f"the engine's response cannot be read: {error}")
            return
        self._tokens.extend(chunk.token_ids)
        self._final = chunk.final
        if chunk.cum_log_prob is not None:
            self._cum_log_prob = chunk.cum_log_prob
            # The C++ backend sends the whole list every time; others only what is new.
            whole = len(chunk.log_probs) >= len(self._log_probs) + len(chunk.token_ids)
            self._log_probs = chunk.log_probs if whole else self._log_probs + chunk.log_probs

    async def _woken(self, at: float, *, for_tokens: bool) -> None:
        """Waits for the time, the end, or a token if those are waited for."""
        self._wake_for_tokens = for_tokens
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(at, self._wake) if at != float("inf") else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
