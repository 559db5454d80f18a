"""Prepare requests, admit them, send them to the engine, and decode the answers.

`build_request_pipeline` assembles the parts for a running engine.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import EngineUnavailable, InvalidRequest, unavailable
from trtllm_truss.guides.validator import GuideGate, GuideValidator, kept_guides_for
from trtllm_truss.inference.admission import Admission, EngineHeartbeat, Slot
from trtllm_truss.inference.answer_reader import (
    AnswerReader,
    Deadlines,
    EngineReader,
    TokenReader,
)
from trtllm_truss.inference.call_parts import CallParts, RepeatedPrompts
from trtllm_truss.inference.preprocessing import (
    Capabilities,
    PreparedRequest,
    Preprocessor,
    with_callers_field,
)
from trtllm_truss.inference.start_throttle import StartThrottle
from trtllm_truss.inference.tokenization import prompt_field
from trtllm_truss.metrics import CallLine, Metrics, RequestMetrics
from trtllm_truss.requests import (
    AnswerItem,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    TextDelta,
    TokenDelta,
    Usage,
)
from trtllm_truss.settings.model import Serving, Settings
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import ResponseStream, TritonClient
from trtllm_truss.triton.client.engine_messages import EngineRequest

if TYPE_CHECKING:
    from trtllm_truss.tracing import CallTrace


Item = TypeVar("Item")


class Generator:
    """Answers requests with one engine and its tokenizer.

    Args:
        connect: returns the connection to the running engine, or raises EngineUnavailable.
        limits: deadlines and the chunk interval.
        logits: limits the tokens whose logits are in memory; None for an engine that returns none.
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
        logits: Admission | None = None,
    ) -> None:
        self._logits = logits
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
        """Fail all waiting requests, because the engine is down. Callable from any thread."""
        error = unavailable("the engine is restarting; try again shortly.")
        if self._loop is not None and not self._loop.is_closed():
            for admission in filter(None, (self._admission, self._logits)):
                self._loop.call_soon_threadsafe(admission.fail_waiting, error)
            self._loop.call_soon_threadsafe(self._preprocessor.engine_is_gone)

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        protocol: str = "predict",
        call_id: str | None = None,
        trace: CallTrace | None = None,
    ) -> AsyncGenerator[list[AnswerItem], None]:
        """Stream all answers to all requests concurrently; yield items in batches as they arrive.

        The last item of an answer is a `GenerationEnd`. The first delta is sent at once, later ones
        are collected for `serving.chunk_interval_ms`. Answers queue, run and count separately; if
        one fails, all end. Closing the generator, or cancelling its consumer, cancels them in the
        engine.

        Args:
            requests: at least one.
            protocol: name of the protocol, for metrics and log.
            call_id: the engine's request id of the first answer; others append their number.
            trace: receives the phases of each answer.

        Raises:
            RequestError: the engine does not support a request; nothing was sent.
            QueueFull: the queue is full or too slow.
            DeadlineExceeded: a deadline of an answer passed.
            TrussError: the engine rejected a request, failed or exited.
        """
        return self._generate(self._text, requests, protocol, call_id, trace)

    def tokens(
        self, request: GenerationRequest, protocol: str, call_id: str
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """Stream the answers to a request as tokens, for a caller that decodes them.

        Like `generate`, but the last delta of an answer has its end.

        Args:
            request: with at least one token to generate, without stop words, reasoning or echo.
            protocol: name of the protocol, for metrics and log.
            call_id: the engine's request id of the first answer.

        Raises:
            RequestError, QueueFull, DeadlineExceeded, TrussError: as `generate`.
        """
        return self._generate(partial(self._answer, TokenReader), [request], protocol, call_id)

    async def _generate(
        self,
        begin: Callable[[PreparedRequest, float, RequestMetrics], AsyncGenerator[list[Item], None]],
        requests: Sequence[GenerationRequest],
        protocol: str,
        call_id: str | None,
        trace: CallTrace | None = None,
    ) -> AsyncGenerator[list[Item], None]:
        self._loop = asyncio.get_running_loop()
        arrived = self._loop.time()
        call_id = call_id or secrets.token_hex(16)
        # Counted as one request until all are prepared.
        line = CallLine(protocol, call_id)
        started = partial(self._metrics.request_started, protocol, trace=trace, line=line)
        with started(call_id) as record, ExitStack() as records:
            await self._throttle.turn()
            first, *others = await self._prepare(requests, call_id, trace)
            answers = [begin(first, arrived, record)]
            for prepared in others:
                request_id = prepared.engine_request.request_id
                record = records.enter_context(started(request_id))
                answers.append(begin(prepared, arrived, record))
            async with aclosing(merge_streams(answers)) as items:
                async for together in items:
                    yield together

    async def _prepare(
        self, requests: Sequence[GenerationRequest], call_id: str, trace: CallTrace | None
    ) -> list[PreparedRequest]:
        """Prepare every answer of the call, in the order of the requests."""
        wanted = sum(request.n for request in requests)
        if wanted > self._admission.capacity:
            raise InvalidRequest(
                f"{wanted} answers are requested; at most {self._admission.capacity} can run and "
                "wait at once (serving.queue_limit). Request fewer.",
                param=requests[0].name("n") if requests[0].n > 1 else prompt_field(requests[0]),
            )
        request_ids = chain([call_id], (f"{call_id}-{number}" for number in count(1)))
        prepared: list[PreparedRequest] = []
        parts: CallParts | None = None
        repeated = RepeatedPrompts()
        for request in requests:
            if prepared:
                await asyncio.sleep(0)  # let running streams continue between two prompts
            first, *others = await self._preprocessor.prepare(
                request, request_ids, len(prepared), trace, parts
            )
            parts = first.parts
            repeated.add(request, first.prompt)
            prepared += (first, *others)
        call = object() if len(prepared) > 1 else None
        for answer in prepared:
            answer.call = call
        return prepared

    def _text(
        self, prepared: PreparedRequest, arrived: float, record: RequestMetrics
    ) -> AsyncGenerator[list[AnswerItem], None]:
        if not prepared.request.needs_engine:
            return _echo(prepared, record)
        return self._answer(AnswerReader, prepared, arrived, record)

    async def _answer(
        self,
        kind: type[EngineReader[Item]],
        prepared: PreparedRequest,
        arrived: float,
        record: RequestMetrics,
    ) -> AsyncGenerator[list[Item], None]:
        if prepared.index:  # the first one had the turn of the call
            await self._throttle.turn(prepared.call)
        self._connect()  # fail before queueing if the engine is down
        record.waits(prepared.engine_request.lora_task_id)
        with _Place(self._heartbeat) as place:
            if self._logits is not None and (tokens := prepared.engine_request.logits_tokens):
                place.take(await self._logits.admit(tokens, prepared.call))
            slot = place.take(await self._admission.admit(prepared.tokens, prepared.call))
            admitted = asyncio.get_running_loop().time()
            record.queued(admitted - arrived)
            reader = kind(
                prepared,
                self._tokenizer,
                Deadlines(self._limits, arrived, admitted),
                self._limits.chunk_interval_ms / 1000,
                record,
                self._heartbeat,
            )
            try:
                first = reader.request
                while not reader.over:
                    request = reader.request
                    async with self._connect().answer(
                        request,
                        on_end=partial(_release_last, slot, reader, request),
                        on_stopped=record.tokens_wasted,
                        on_heartbeat=self._heartbeat.sign_of_life,
                    ) as stream:
                        place.stream = stream
                        if request is first:
                            record.sent(len(prepared.prompt.ids))
                        while not reader.over and reader.request is request:
                            if items := await reader.read(stream):
                                yield items
                    if stream.stopping is not None and not reader.over:
                        # Its tokens are in the KV cache, and its place is free, once it has
                        # stopped.
                        await asyncio.wait([stream.stopping])
            except EngineUnavailable as error:
                self._heartbeat.request_failed(error)
                raise
            except InvalidRequest as refused:
                raise with_callers_field(refused, prepared.request) from None


class _Place:
    """The slots of an answer, until the engine has ended its last request.

    The engine runs an abandoned request until it has stopped it. A slot that is free before lets
    the next request wait in the engine, which processes its prompt even if its client leaves. The
    logits of both would be in memory at once.

    Args:
        heartbeat: counts the request as waiting until then.

    Attributes:
        stream: of the last request; None before the first one.
    """

    __slots__ = ("_heartbeat", "_slots", "stream")

    def __init__(self, heartbeat: EngineHeartbeat) -> None:
        self._slots: list[Slot] = []
        self._heartbeat = heartbeat
        self.stream: ResponseStream | None = None

    def take(self, slot: Slot) -> Slot:
        """Keep a slot, and return it."""
        self._slots.append(slot)
        return slot

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *error: object) -> None:
        stopping = None if self.stream is None else self.stream.stopping
        if stopping is None or stopping.done():
            self._release()
        else:
            self._heartbeat.begin()
            stopping.add_done_callback(self._stopped)

    def _stopped(self, _: object) -> None:
        self._heartbeat.end()
        self._release()

    def _release(self) -> None:
        for slot in self._slots:
            slot.release()


def _release_last(slot: Slot, reader: EngineReader[Any], request: EngineRequest) -> None:
    """Free the place once an answer's last request has ended; another may have replaced it."""
    if reader.is_last and reader.request is request:
        slot.release()


async def _echo(
    prepared: PreparedRequest, record: RequestMetrics
) -> AsyncGenerator[list[AnswerItem], None]:
    """Answer a request for no token at all."""
    usage = Usage(len(prepared.prompt.ids), 0)
    record.finished(FinishReason.LENGTH)
    yield [
        TextDelta(prepared.prompt.text, prepared.index, usage=usage),
        GenerationEnd(
            FinishReason.LENGTH,
            usage,
            prepared.index,
            seed=prepared.seed,
            prompt=prepared.prompt.tokens,
        ),
    ]


def merge_streams(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Merge streams in order of arrival; a single stream is returned as it is.

    Streams run concurrently, at most one item ahead of the reader. All are closed at the end, on
    errors too.

    Args:
        streams: at least one; none of them started.

    Raises:
        Exception: the error of the first stream that fails.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    # A tuple wraps each item to distinguish it from the end of a stream.
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
    """Queue the items of a stream, then None or its error."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((item,))
    except Exception as error:
        await queue.put(error)
        raise
    await queue.put(None)


logger = logging.getLogger(__name__)


class RequestPipeline(NamedTuple):
    """The objects that answer requests with a running engine.

    Attributes:
        recommended: the sampling defaults of the model's `generation_config.json`.
    """

    engine: Engine
    tokenizer: TextTokenizer
    admission: Admission
    generator: Generator
    recommended: Mapping[str, Any]


def build_request_pipeline(
    settings: Settings,
    engine: Engine,
    capacity: Capacity | None,
    tensorrt_llm_version: str | None,
    guides: GuideValidator | None,
    tokenizer: TextTokenizer,
    connect: Callable[[], TritonClient],
    heartbeat: EngineHeartbeat,
    metrics: Metrics,
) -> RequestPipeline:
    """Build admission and generator of an engine.

    Args:
        guides: None without guided decoding.
        connect: returns the connection to the running engine, or raises EngineUnavailable.
    """
    admission = Admission.for_engine(settings, engine, capacity)
    kept = kept_guides_for(engine, settings, tensorrt_llm_version)
    capabilities = Capabilities.for_engine(settings, engine, capacity, tensorrt_llm_version)
    preprocessor = Preprocessor(
        engine,
        tokenizer,
        capabilities,
        GuideGate(guides, kept, engine.guided_decoding_backend(settings))
        if guides is not None
        else None,
        engine.cache_report(settings.runtime, tensorrt_llm_version),
    )
    generator = Generator(
        preprocessor,
        tokenizer,
        connect,
        settings.serving,
        admission=admission,
        heartbeat=heartbeat,
        metrics=metrics,
        logits=Admission(admission.max_requests, capabilities.logits_tokens, settings.serving)
        if capabilities.logits_tokens
        else None,
    )
    recommended = _recommended(tokenizer.sampling, engine.refuses(tensorrt_llm_version))
    return RequestPipeline(engine, tokenizer, admission, generator, recommended)


def _recommended(sampling: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Leave out what the engine refuses; else each request that omits the field would fail."""
    for name in sampling.keys() & set(refused):
        logger.warning("generation_config.json: %s is not used: the engine has none", name)
    return {name: value for name, value in sampling.items() if name not in refused}
