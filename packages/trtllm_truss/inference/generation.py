"""The life of requests: prepared, admitted, sent to the engine, and turned back into text."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from itertools import chain, count
from typing import TypeVar

from trtllm_truss.errors import EngineUnavailable, InvalidRequest
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.capabilities import in_callers_words
from trtllm_truss.inference.decode_stream import AnswerReader, Deadlines, EngineHeartbeat
from trtllm_truss.inference.preprocessing import PreparedRequest, Preprocessor
from trtllm_truss.inference.tokenization import prompt_field
from trtllm_truss.metrics.collector import Metrics, RequestMetrics
from trtllm_truss.requests import AnswerItem, GenerationRequest
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.failures import unavailable

STARTS_AT_ONCE = 8

Item = TypeVar("Item")


class Generator:
    """Answers requests with one engine and its tokenizer.

    Args:
        preprocessor: prepares requests for the engine.
        tokenizer: the one that the engine's model was trained with.
        connect: gives the connection to the engine as it runs now, or raises EngineUnavailable.
        limits: deadlines and the chunk interval.
        admission: decides how many requests the engine has at once.
        heartbeat: is told of waiting and of the engine's answers.
        metrics: is told of everything that can be counted.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        tokenizer: TextTokenizer,
        connect: Callable[[], TritonClient],
        limits: Serving,
        *,
        admission: Admission,
        heartbeat: EngineHeartbeat,
        metrics: Metrics,
    ) -> None:
        self._preprocessor = preprocessor
        self._tokenizer = tokenizer
        self._connect = connect
        self._limits = limits
        self._admission = admission
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._throttle = StartThrottle()
        self._loop: asyncio.AbstractEventLoop | None = None

    def engine_is_gone(self) -> None:
        """Refuses those who wait for the engine, which may be gone for minutes. Any thread's."""
        error = unavailable("the engine is restarting; try again shortly.")
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._admission.fail_waiting, error)

    async def generate(
        self,
        requests: Sequence[GenerationRequest],
        protocol: str = "predict",
        call_id: str | None = None,
    ) -> AsyncGenerator[AnswerItem, None]:
        """All answers to all requests, side by side.

        An answer comes piece by piece; its last item is a `GenerationEnd`. Its first piece comes
        at once, later ones are collected for `serving.chunk_interval_ms`. Each of them queues,
        runs and is counted by itself; if one fails, all end. Closing the generator, or cancelling
        its consumer, ends them in the engine.

        Args:
            requests: what to generate, at least one.
            protocol: which of our protocols asks, for metrics and log.
            call_id: what the engine is to call the first answer; others add their number to it.

        Raises:
            RequestError: a request does not fit this engine; nothing was sent to it.
            QueueFull: an answer would have to wait too long.
            DeadlineExceeded: one of an answer's deadlines has passed.
            TrussError: the engine refused, failed or went away.
        """
        self._loop = asyncio.get_running_loop()
        arrived = self._loop.time()
        call_id = call_id or uuid.uuid4().hex
        with ExitStack() as records:
            # Until all are prepared it is one request, and refused as one.
            record = records.enter_context(self._metrics.request_started(protocol, call_id))
            await self._throttle.turn()
            first, *others = await self._prepare(requests, call_id)
            answers = [self._answer(first, arrived, record)]
            for prepared in others:
                request_id = prepared.engine_request.request_id
                record = records.enter_context(self._metrics.request_started(protocol, request_id))
                answers.append(self._answer(prepared, arrived, record))
            async with aclosing(merge_streams(answers)) as items:
                async for item in items:
                    yield item

    async def _prepare(
        self, requests: Sequence[GenerationRequest], call_id: str
    ) -> list[PreparedRequest]:
        """Every answer of the call, in the order of the requests."""
        wanted = sum(request.n for request in requests)
        if wanted > self._admission.capacity:
            raise InvalidRequest(
                f"{wanted} answers are asked for at once; at most {self._admission.capacity} can "
                "run and wait here (serving.queue_limit). Ask for fewer.",
                param=requests[0].name("n") if requests[0].n > 1 else prompt_field(requests[0]),
            )
        request_ids = chain([call_id], (f"{call_id}-{number}" for number in count(1)))
        prepared: list[PreparedRequest] = []
        for request in requests:
            if prepared:
                await asyncio.sleep(0)  # running streams go on between one prompt and the next
            prepared += await self._preprocessor.prepare(request, request_ids, len(prepared))
        return prepared

    async def _answer(
        self, prepared: PreparedRequest, arrived: float, record: RequestMetrics
    ) -> AsyncGenerator[AnswerItem, None]:
        """One answer, from the queue to its end."""
        self._connect()  # without an engine there is nothing to queue for
        slot = await self._admission.admit(prepared.tokens)
        admitted = asyncio.get_running_loop().time()
        record.queued(admitted - arrived)
        try:
            async with self._connect().answer(
                prepared.engine_request,
                on_end=slot.release,
                on_stopped=record.tokens_wasted,
                on_heartbeat=self._heartbeat.sign_of_life,
            ) as stream:
                record.sent(len(prepared.prompt.ids))
                reader = AnswerReader(
                    prepared,
                    self._tokenizer,
                    Deadlines(self._limits, arrived, admitted),
                    self._limits.chunk_interval_ms / 1000,
                    record,
                    self._heartbeat,
                )
                while not reader.over:
                    for item in await reader.read(stream):
                        yield item
        except EngineUnavailable:
            self._heartbeat.request_failed()
            raise
        except InvalidRequest as refused:
            raise in_callers_words(refused, prepared.request) from None
        finally:
            slot.release()


class StartThrottle:
    """Lets few requests begin in each round of the event loop.

    To plan a request and send it to the engine takes as long as to send several chunks. When
    hundreds come at once and all begin in one round, every answer that runs waits for the whole of
    it. Eight at a time, chunks go out between them, and nobody waits longer in the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun = 0

    async def turn(self) -> None:
        """Returns when it is the caller's turn: at once if few have begun in this round."""
        loop = asyncio.get_running_loop()
        if self._begun == 0:
            loop.call_soon(self._next_round)
        if self._begun < STARTS_AT_ONCE:
            self._begun += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < STARTS_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else the caller has left
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_round)


def merge_streams(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Items of all streams as they come; one stream is given back as it is.

    Every stream runs on by itself, but no further than one item ahead of the reader. All are
    closed in the end, whatever that is.

    Args:
        streams: at least one; none of them begun.

    Raises:
        Exception: what the first stream to fail raised.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    # An item stands in a tuple, so that it is told from what ends a stream.
    queue: asyncio.Queue[tuple[Item] | Exception | None] = asyncio.Queue(1)
    readers = [asyncio.create_task(_read(stream, queue)) for stream in streams]
    running = len(readers)
    try:
        while running:
            event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield event[0]
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    stream: AsyncGenerator[Item, None],
    queue: asyncio.Queue[tuple[Item] | Exception | None],
) -> None:
    """Puts the items of a stream into the queue, then None, or what it raised."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((item,))
    except Exception as error:
        await queue.put(error)
        raise
    await queue.put(None)
