"""Read the engine's tokens of one choice within its deadlines and decode them into text."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Generic, TypeVar

from trtllm_truss.inference.deadlines import Deadlines
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.inference.preprocessing import PreparedRequest
from trtllm_truss.inference.reasoning import (
    ReasoningReader,
    ReasoningTokenCounter,
    State,
    second_request,
)
from trtllm_truss.observability.metrics import RequestMetrics
from trtllm_truss.requests import (
    Alternative,
    AnswerItem,
    FinishReason,
    GenerationEnd,
    TextDelta,
    Token,
    TokenDelta,
    Usage,
)
from trtllm_truss.text.text_stream import TextStream, TokenStream, TokenText
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import ResponseStream
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest

_MIN_LOG_PROB = -9999.0
"""Replaces minus infinity, which JSON cannot represent; OpenAI's API uses the same value."""


Item = TypeVar("Item")


class EngineReader(ABC, Generic[Item]):
    """Reads one choice from the engine and reports it to metrics and the heartbeat.

    Args:
        interval_s: minimum time between two reads after the first one.

    Attributes:
        over: True after the last item.
        request: the next request to read.
        is_last: True if no further request follows.
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
        self.request = prepared.engine_request
        self.is_last = True
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._deadlines = deadlines
        self._interval_s = interval_s
        self._record = record
        self._heartbeat = heartbeat
        self._generated = 0
        self._cached_tokens: int | None = None
        self._next_at = 0.0
        self._items: list[Item] = []
        self._begin()

    def _begin(self) -> None:
        """Complete the construction."""

    async def read(self, stream: ResponseStream) -> list[Item]:
        """Wait for the next tokens and return their items.

        Raises:
            DeadlineExceeded: a deadline passed.
            TrussError: the engine rejected the request, failed or exited.
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
        self._items = []
        if self._cached_tokens is None and chunk.cached is not None:
            self._read_cached(chunk.cached)
        self._read(chunk)
        return self._items

    @abstractmethod
    def _read(self, chunk: EngineChunk) -> None:
        """Append the items of a chunk to `_items`."""

    def _read_cached(self, count: int) -> None:
        """Read the engine's count of cached tokens.

        Its last block may be partly used, and the count never includes the last token.
        """
        prepared = self._prepared
        report = prepared.engine_request.cache_report
        assert report is not None, "no count comes unasked"
        tokens = min(count * report.unit_tokens, len(prepared.prompt.ids) - 1)
        self._cached_tokens = tokens
        self._record.cached(tokens)

    def _end(
        self, *, is_stop: bool, stop_word: str | None = None, reasoning_tokens: int | None = None
    ) -> GenerationEnd:
        """Report that the choice has finished, and describe it."""
        prepared = self._prepared
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        self._record.finished(reason)
        return GenerationEnd(
            reason,
            self._usage(reasoning_tokens),
            prepared.index,
            stop_word=stop_word,
            seed=prepared.seed,
            prompt=prepared.prompt.tokens,
        )

    def _usage(self, reasoning_tokens: int | None = None) -> Usage:
        return Usage(
            len(self._prepared.prompt.ids), self._generated, reasoning_tokens, self._cached_tokens
        )


class TokenReader(EngineReader[TokenDelta]):
    """Reads one choice for a caller that decodes it.

    The request must have no stop words, reasoning or echo, which all need the text.
    """

    def _read(self, chunk: EngineChunk) -> None:
        ids, end_id = self._prepared.cut_at_end(chunk.token_ids)
        before, self._generated = self._generated, self._generated + len(ids)
        self._record.tokens(len(ids))
        end = None
        if end_id is not None or chunk.final:
            self.over = True
            self._heartbeat.request_answered()
            has_room = self._generated < self._prepared.engine_request.max_tokens
            end = self._end(is_stop=end_id is not None or has_room)
        if ids or end is not None:
            self._items.append(
                TokenDelta(
                    ids,
                    self._prepared.index,
                    tuple(chunk.log_probs[before : self._generated]),
                    tuple(chunk.alternatives[before : self._generated]),
                    end,
                )
            )


class AnswerReader(EngineReader[AnswerItem]):
    """Decodes one choice into text deltas and a `GenerationEnd`.

    The log probabilities of the prompt, the reasoning and the text after it may each need a request
    of their own, one after the other.
    """

    def _begin(self) -> None:
        prepared, tokenizer = self._prepared, self._tokenizer
        plan, whole = prepared.reasoning, prepared.engine_request
        if plan is not None:
            self.request, self.is_last = plan.first_request(whole, tokenizer), False
        self._reasoning = ReasoningReader(plan, tokenizer) if plan else None
        self._max_tokens = whole.max_tokens
        self._text = _text_stream(prepared, tokenizer)
        self._details = _TokenDetails(tokenizer)
        self._echo = prepared.prompt.text
        self._after_scoring: EngineRequest | None = None
        self._scored: EngineChunk | None = None
        if whole.prompt_log_probs and whole.logits == "generation":
            self._after_scoring, self.is_last = self.request, False
            self.request = _scoring_request(whole)
        self._counts = prepared.request.running_usage
        self._counter = _reasoning_counter(prepared, tokenizer)
        self._counts_reasoning = self._counter is not None or self._reasoning is not None
        self._reasoning_tokens: int | None = None

    def _read(self, chunk: EngineChunk) -> None:
        if self._after_scoring is not None:
            self._scored, self.request = chunk, self._after_scoring
            self._after_scoring, self.is_last = None, self._reasoning is None
            self._deadlines.begin_again(asyncio.get_running_loop().time())
            return
        if self._prepared.request.max_tokens == 0:
            self._end_with_echo(chunk)
            return
        ids, end_id = self._prepared.cut_at_end(chunk.token_ids)
        if self._reasoning is None:
            self._read_text(ids, end_id, chunk)
        else:
            self._read_reasoning(self._reasoning, ids, end_id, chunk)

    def _read_text(self, ids: Sequence[int], end_id: int | None, chunk: EngineChunk) -> None:
        if self._counter is not None and self._reasoning_tokens is None:
            self._counter.read(ids)
            self._reasoning_tokens = self._counter.count
        has_stopped = self._push(ids, chunk)
        if end_id is not None or has_stopped or chunk.final:
            self._ending(end_id, chunk)

    def _read_reasoning(
        self, reader: ReasoningReader, ids: Sequence[int], end_id: int | None, chunk: EngineChunk
    ) -> None:
        plan, (state, _, head) = reader.plan, reader.read(ids)
        if not plan.is_guided and state in (State.NONE, State.ENDED):
            self._reasoning, self.is_last = None, True
            self._reasoning_tokens = len(reader.ids) if state is State.ENDED else 0
            self._read_text(ids, end_id, chunk)
            return
        is_over = end_id is not None or chunk.final
        # An EOS token inside the reasoning does not finish a choice that must contain text.
        is_all = is_over and (
            not plan.is_guided
            or self._is_callers(end_id)
            or len(reader.ids) >= self._prepared.engine_request.max_tokens
        )
        if plan.is_guided and state is State.UNKNOWN and not is_all:
            if not is_over:
                return
            state = State.NONE
        if state is State.NONE:
            self._reasoning_tokens = 0
            self._go_on([], plan.prefix, chunk)
            return
        new = reader.ids[self._generated : None if head is None else -1]
        has_stopped = self._push(new, chunk)
        if has_stopped:
            self._ending(None, chunk)
        elif state is State.ENDED:
            if head is not None:
                self._generated += 1
                self._record.tokens(1)
                del reader.ids[-1]
            self._reasoning_tokens = self._generated
            self._go_on(reader.ids, (head or "") + plan.after_end, chunk)
        elif state is State.LIMIT or (is_over and not is_all):
            self._reasoning_tokens = self._generated
            self._go_on(reader.ids, plan.closing, chunk)
        elif is_over:
            self._ending(end_id, chunk)

    def _go_on(self, ids: Sequence[int], put_in: str, chunk: EngineChunk) -> None:
        """Start the text after the reasoning.

        Args:
            put_in: text inserted after it.
            chunk: the last chunk with reasoning.
        """
        prepared, plan = self._prepared, self._prepared.reasoning
        assert plan is not None
        self._reasoning, self.is_last = None, True
        prompt = [*prepared.prompt.ids, *ids]
        if put_in:
            prompt += self._tokenizer.encode(put_in, add_special_tokens=False)
        whole = prepared.engine_request
        room = min(whole.max_tokens - self._generated, plan.context_tokens - len(prompt))
        self._max_tokens = self._generated + max(0, room)
        self._finish_text(chunk)
        if self._text.stopped or room < 1:
            self._ending(None, chunk)
            return
        if self._echo:
            self._add_echo(chunk)
        if put_in:
            self._add(put_in if plan.is_guided else self._visible(put_in))
        self._text = _text_stream(prepared, self._tokenizer)
        self._details = _TokenDetails(self._tokenizer)
        self._deadlines.begin_again(asyncio.get_running_loop().time())
        self.request = second_request(whole, prompt, self._generated, room)

    def _visible(self, text: str) -> str:
        """Remove the special tokens that the response omits from inserted text."""
        request, tokenizer = self._prepared.request, self._tokenizer
        if not request.skip_special_tokens:
            return text
        ids = tokenizer.encode(text, add_special_tokens=False)
        for special in {
            tokenizer.token_text(each) for each in tokenizer.special_ids.intersection(ids)
        }:
            if special not in request.shown_special_tokens:
                text = text.replace(special, "")
        return text

    def _is_callers(self, end_id: int | None) -> bool:
        """Return True if an end id finishes choices because the caller asked for it."""
        prepared = self._prepared
        end = prepared.engine_request.end_id if end_id is None else end_id
        return end in prepared.parts.special_stop_words or end in prepared.request.stop_token_ids

    def _push(self, ids: Sequence[int], chunk: EngineChunk) -> bool:
        """Decode tokens; return True if a stop word finishes the choice."""
        text = self._text
        piece = text.push(ids)
        self._generated += piece.used
        self._record.tokens(piece.used)
        if self._echo:
            self._add_echo(chunk)
        if piece.text:
            self._add(piece.text, self._details.of(text.tokens, chunk))
        return piece.stopped

    def _add_echo(self, chunk: EngineChunk) -> None:
        tokens: tuple[Token, ...] = ()
        if self._prepared.request.scores_prompt:
            tokens = self._details.of_prompt(self._prepared.prompt.tokens, self._scored or chunk)
        self._add(self._echo, tokens)
        self._echo = ""

    def _end_with_echo(self, chunk: EngineChunk) -> None:
        """Finish a choice without tokens, whose request only scored the prompt."""
        self.over = True
        self._heartbeat.request_answered()
        self._add_echo(chunk)
        self._items.append(self._end(is_stop=False))

    def _finish_text(self, chunk: EngineChunk) -> None:
        tail = self._text.finish()
        if tail or self._text.tokens:
            self._add(tail, self._details.of(self._text.tokens, chunk))

    def _ending(self, end_id: int | None, chunk: EngineChunk) -> None:
        prepared, text = self._prepared, self._text
        self.over = True
        self._heartbeat.request_answered()
        self._finish_text(chunk)
        ended = text.stopped or end_id is not None or self._generated < self._max_tokens
        stop_word = text.stop_word
        if ended and stop_word is None:
            stop_word = prepared.special_stop_word(end_id)
            if stop_word is not None and prepared.request.include_stop:
                self._add(stop_word)
        reasoning_tokens = self._counted_reasoning()
        self._items.append(
            self._end(is_stop=ended, stop_word=stop_word, reasoning_tokens=reasoning_tokens)
        )

    def _add(self, text: str, tokens: tuple[Token, ...] = ()) -> None:
        usage = self._usage(self._counted_reasoning()) if self._counts else None
        self._items.append(TextDelta(text, self._prepared.index, tokens, usage))

    def _counted_reasoning(self) -> int | None:
        if not self._counts_reasoning:
            return None
        if self._reasoning_tokens is None:
            return self._generated
        return min(self._reasoning_tokens, self._generated)


def _scoring_request(whole: EngineRequest) -> EngineRequest:
    """Derive the request for the prompt's logits, which a stream would repeat."""
    return replace(
        whole,
        request_id=f"{whole.request_id}-prompt",
        max_tokens=1,
        streaming=False,
        logits="context",
        stop_words=(),
        guide=None,
    )


def _reasoning_counter(
    prepared: PreparedRequest, tokenizer: TextTokenizer
) -> ReasoningTokenCounter | None:
    """Return a counter for a choice with at most one reasoning part, before its text."""
    words = prepared.request.chat.reasoning
    if words is None or not words.is_single or prepared.request.chat.answer_prefix:
        return None
    return ReasoningTokenCounter(words.ends[0], tokenizer)


def _text_stream(prepared: PreparedRequest, tokenizer: TextTokenizer) -> TextStream:
    request = prepared.request
    kind = TokenStream if request.shows_tokens else TextStream
    return kind(
        tokenizer,
        prepared.parts.stop_words,
        include_stop_word=request.include_stop,
        skip_special_tokens=request.skip_special_tokens,
        shown=request.shown_special_tokens,
    )


class _TokenDetails:
    """Joins the tokens of one choice with their log probabilities, in order."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = tokenizer.special_ids
        self._count = 0

    def of(self, tokens: Sequence[TokenText], chunk: EngineChunk) -> tuple[Token, ...]:
        """Return the details of the next tokens; `chunk` covers all tokens so far."""
        if not tokens:
            return ()
        first, self._count = self._count, self._count + len(tokens)
        places = slice(first, self._count)
        return self._scored(tokens, chunk.log_probs[places], chunk.alternatives[places])

    def of_prompt(self, tokens: Sequence[Token], chunk: EngineChunk) -> tuple[Token, ...]:
        """Return the prompt's tokens with their log probabilities; the first token has none."""
        plain = [TokenText(token.id, token.text) for token in tokens[1:]]
        scored = self._scored(plain, chunk.prompt_log_probs, chunk.prompt_alternatives)
        return (*tokens[:1], *scored)

    def _scored(
        self,
        tokens: Sequence[TokenText],
        log_probs: Sequence[float],
        alternatives: Sequence[Sequence[tuple[int, float]]],
    ) -> tuple[Token, ...]:
        """Pair tokens with their log probabilities and alternatives, from the first."""
        return tuple(
            Token(
                token_id,
                text,
                None if log_prob is None else max(_MIN_LOG_PROB, log_prob),
                special=token_id in self._special_ids,
                alternatives=tuple(self._alternative(*pair) for pair in pairs or ()),
            )
            for (token_id, text), log_prob, pairs in islice(
                zip_longest(tokens, log_probs, alternatives), len(tokens)
            )
        )

    def _alternative(self, token_id: int, log_prob: float) -> Alternative:
        text = self._tokenizer.token_text(token_id)
        return Alternative(token_id, text, max(_MIN_LOG_PROB, log_prob))
