"""One answer while it arrives: the engine's tokens become text, within its deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trtllm_truss.errors import DeadlineExceeded, EngineUnavailable, TrussError
from trtllm_truss.inference.preprocessing import PreparedRequest
from trtllm_truss.metrics.collector import RequestMetrics
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, TextDelta, Token, Usage
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.text_stream import TextStream, TokenText
from trtllm_truss.text.token_stream import TokenStream
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.request import EngineChunk
from trtllm_truss.triton.client.response_stream import ResponseStream

_LEAST_LOG_PROB = -9999.0
"""Instead of minus infinity, which JSON has no name for; the value is that of OpenAI's API."""

_FAILURES = 3
"""In a row, with nothing good in between, before they count as silence."""


class AnswerReader:
    """Reads one answer, and reports it to metrics and heartbeat.

    Attributes:
        over: whether the last item was given.

    Args:
        prepared: what the engine was asked for.
        tokenizer: turns its tokens into text.
        deadlines: how long it may take.
        interval_s: for how long tokens are collected before they are given on together; not the
            first ones.
        record: is told of tokens and of the end.
        heartbeat: is told of waiting and of the end.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: TextTokenizer,
        deadlines: Deadlines,
        interval_s: float,
        record: RequestMetrics,
        heartbeat: EngineHeartbeat,
    ) -> None:
        self.over = False
        self._prepared = prepared
        self._deadlines = deadlines
        self._interval_s = interval_s
        self._record = record
        self._heartbeat = heartbeat
        self._text = _text_stream(prepared, tokenizer)
        self._details = _TokenDetails(tokenizer)
        self._echo = prepared.prompt.text
        self._generated = 0
        self._next_at = 0.0

    async def read(self, stream: ResponseStream) -> Iterator[AnswerItem]:
        """Wait for the next tokens; give the items that they complete, at last a `GenerationEnd`.

        Args:
            stream: what the engine gives.

        Raises:
            DeadlineExceeded: one of the deadlines has passed.
            TrussError: the engine refused, failed or went away.
        """
        deadlines = self._deadlines
        try:
            with self._heartbeat.waiting():
                chunk = await stream.next(not_before=self._next_at, deadline=deadlines.at())
        except TimeoutError:
            raise deadlines.exceeded() from None
        now = asyncio.get_running_loop().time()
        self._next_at = now + self._interval_s
        deadlines.tokens_came(now)
        if now >= deadlines.at() and not chunk.final:  # tokens still come, but for too long
            raise deadlines.exceeded()
        return self._items(chunk)

    def _items(self, chunk: EngineChunk) -> Iterator[AnswerItem]:
        index, text = self._prepared.index, self._text
        ids, end_id = self._prepared.cut_at_end(chunk.token_ids)
        piece = text.push(ids)
        self._generated += piece.used
        self._record.tokens(piece.used)
        if self._echo:
            yield TextDelta(self._echo, index)
            self._echo = ""
        if piece.text:
            yield TextDelta(piece.text, index, self._details.of(text.tokens, chunk.log_probs))
        if end_id is not None or piece.stopped or chunk.final:
            yield from self._ending(end_id, chunk.log_probs)
            self.over = True

    def _ending(self, end_id: int | None, log_probs: Sequence[float]) -> Iterator[AnswerItem]:
        prepared, text, index = self._prepared, self._text, self._prepared.index
        self._heartbeat.request_answered()
        tail = text.finish()
        if tail or text.tokens:
            yield TextDelta(tail, index, self._details.of(text.tokens, log_probs))
        most = prepared.engine_request.max_tokens
        ended = text.stopped or end_id is not None or self._generated < most
        stop_word = text.stop_word
        if ended and stop_word is None:
            stop_word = prepared.special_stop_word(end_id)
            if stop_word is not None and prepared.request.include_stop:
                yield TextDelta(stop_word, index)
        reason = FinishReason.STOP if ended else FinishReason.LENGTH
        self._record.finished(reason)
        yield GenerationEnd(
            reason,
            Usage(len(prepared.prompt.ids), self._generated),
            index,
            stop_word=stop_word,
            seed=prepared.seed,
            prompt=prepared.prompt.tokens,
        )


class Deadlines:
    """One request's deadlines on one clock: for its first token, for each next one, for all."""

    __slots__ = ("_begun", "_limits", "_token_at", "_total_at")

    def __init__(self, limits: Serving, arrived: float, admitted: float) -> None:
        """Starts them; times are in seconds of one clock.

        Args:
            limits: `first_token_timeout_s`, `idle_timeout_s` and `request_timeout_s`.
            arrived: when the request came.
            admitted: when it got its place in the engine.
        """
        self._limits = limits
        self._total_at = arrived + limits.request_timeout_s
        self._token_at = admitted + limits.first_token_timeout_s
        self._begun = False

    def tokens_came(self, now: float) -> None:
        """Starts the time for the next token."""
        self._token_at = now + self._limits.idle_timeout_s
        self._begun = True

    def at(self) -> float:
        """When the request is out of time, unless a token comes."""
        return min(self._total_at, self._token_at)

    def exceeded(self) -> DeadlineExceeded:
        """The error of a request that is out of time."""
        limits = self._limits
        if self._total_at <= self._token_at:
            return _exceeded("the answer is not complete", "request_timeout_s", limits)
        if not self._begun:
            return _exceeded("there is no first token", "first_token_timeout_s", limits)
        return _exceeded("there is no further token", "idle_timeout_s", limits)


def _exceeded(what: str, name: str, limits: Serving) -> DeadlineExceeded:
    return DeadlineExceeded(f"{what} after {getattr(limits, name):g} s (serving.{name}).")


class EngineHeartbeat:
    """Knows how many requests wait for the engine, and when it last gave them something.

    A request with a slow reader, or with an unchecked guide, does not wait for the engine.
    Written by the event loop, read by the supervisor's thread.

    Attributes:
        answered: requests that the engine has answered to the end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = 0
        self._clock = clock
        self._waiting = 0
        self._last_sign = 0.0
        self._failures = 0
        self._first_failure = self._last_failure = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A request waits for the engine; a token or a refusal is a sign of life."""
        if self._waiting == 0:
            self._last_sign = self._clock()
        self._waiting += 1
        try:
            yield
        except EngineUnavailable:
            raise
        except TrussError:
            self.sign_of_life()
            raise
        else:
            self.sign_of_life()
        finally:
            self._waiting -= 1

    def sign_of_life(self) -> None:
        """Notes that the engine has just shown that it works."""
        self._last_sign = self._clock()
        self._failures = 0

    def request_failed(self) -> None:
        """Notes that a request found no engine, or lost it."""
        self._last_failure = self._clock()
        if self._failures == 0:
            self._first_failure = self._last_failure
        self._failures += 1

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds in which requests waited for nothing, or in which each of them failed."""
        failing_for_s = self._last_failure - self._first_failure
        return max(
            self._clock() - self._last_sign if self._waiting else 0.0,
            failing_for_s if self._failures >= _FAILURES else 0.0,
        )


def _text_stream(prepared: PreparedRequest, tokenizer: TextTokenizer) -> TextStream:
    request = prepared.request
    kind = TokenStream if prepared.engine_request.return_log_probs else TextStream
    return kind(
        tokenizer,
        prepared.stop_words,
        include_stop_word=request.include_stop,
        skip_special_tokens=request.skip_special_tokens,
    )


class _TokenDetails:
    """The tokens of one answer, told in order."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._special_ids = tokenizer.special_ids
        self._told = 0

    def of(self, tokens: Sequence[TokenText], log_probs: Sequence[float]) -> tuple[Token, ...]:
        """The next tokens with what is known of them; `log_probs` are those of all so far."""
        if not tokens:
            return ()
        first, self._told = self._told, self._told + len(tokens)
        known: list[float | None] = [_sayable(each) for each in log_probs[first : self._told]]
        known += [None] * (len(tokens) - len(known))
        return tuple(
            Token(token_id, text, log_prob, special=token_id in self._special_ids)
            for (token_id, text), log_prob in zip(tokens, known, strict=True)
        )


def _sayable(log_prob: float) -> float:
    return log_prob if log_prob > _LEAST_LOG_PROB else _LEAST_LOG_PROB
