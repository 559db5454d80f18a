"""The engine's tokens become an answer: pieces of text, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from trtllm_truss.inference.deadlines import Deadlines
from trtllm_truss.inference.heartbeat import Activity
from trtllm_truss.inference.prepared_request import Plan
from trtllm_truss.metrics.request import RequestMetrics
from trtllm_truss.requests import Finish, FinishReason, Piece, Token, Usage
from trtllm_truss.text.text_stream import TextStream, TokenText
from trtllm_truss.text.token_stream import TokenStream
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.response_stream import Answer

_LEAST_LOG_PROB = -9999.0
"""Instead of minus infinity, which JSON has no name for; the value is that of OpenAI's API."""


async def read_answer(
    answer: Answer,
    plan: Plan,
    tokenizer: TextTokenizer,
    deadlines: Deadlines,
    interval_s: float,
    record: RequestMetrics,
    activity: Activity,
) -> AsyncGenerator[Piece | Finish, None]:
    """The answer's pieces, and exactly one `Finish` as its last item.

    Args:
        answer: what the engine gives.
        plan: what it was asked for.
        tokenizer: turns it into text.
        deadlines: how long it may take.
        interval_s: for how long tokens are collected before they are given on together; not the
            first ones.
        record: is told of tokens and of the end.
        activity: is told of waiting and of the end.

    Raises:
        DeadlineExceeded: one of the deadlines has passed.
        TrussError: the engine refused, failed or went away.
    """
    now, index, echo = asyncio.get_running_loop().time, plan.index, plan.prompt.text
    text, details = _text_stream(plan, tokenizer), _Details(tokenizer)
    generated, next_at, end_id, over = 0, 0.0, None, False
    while not over:
        try:
            with activity.waiting():
                chunk = await answer.next(not_before=next_at, deadline=deadlines.at())
        except TimeoutError:
            raise deadlines.exceeded() from None
        came_at = now()
        next_at = came_at + interval_s
        ids, end_id = plan.cut_at_end(chunk.token_ids)
        deadlines.tokens_came(came_at)
        if came_at >= deadlines.at() and not chunk.final:  # tokens still come, but for too long
            raise deadlines.exceeded()
        piece = text.push(ids)
        generated += piece.used
        record.tokens(piece.used, time.monotonic())
        if echo:
            yield Piece(echo, index)
            echo = ""
        if piece.text:
            yield Piece(piece.text, index, details.of(text.tokens, chunk.log_probs))
        over = end_id is not None or piece.stopped or chunk.final
    activity.request_answered()
    tail = text.finish()
    if tail or text.tokens:
        yield Piece(tail, index, details.of(text.tokens, chunk.log_probs))
    ended = text.stopped or end_id is not None or generated < plan.engine_request.max_tokens
    stop_word = text.stop_word
    if ended and stop_word is None:
        stop_word = plan.special_stop_word(end_id)
        if stop_word is not None and plan.request.include_stop:
            yield Piece(stop_word, index)
    reason = FinishReason.STOP if ended else FinishReason.LENGTH
    record.finished(reason)
    yield Finish(
        reason,
        Usage(len(plan.prompt.ids), generated),
        index,
        stop_word=stop_word,
        seed=plan.seed,
        prompt=plan.prompt.tokens if index == 0 else (),
    )


def _text_stream(plan: Plan, tokenizer: TextTokenizer) -> TextStream:
    request = plan.request
    kind = TokenStream if plan.engine_request.return_log_probs else TextStream
    return kind(
        tokenizer,
        plan.stop_words,
        include_stop_word=request.include_stop,
        skip_special_tokens=request.skip_special_tokens,
    )


class _Details:
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
