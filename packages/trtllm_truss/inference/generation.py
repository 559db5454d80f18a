"""Run a request: prepare it, admit it, send it to the engine and decode its choices."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from trtllm_truss.errors import EngineUnavailable, InvalidRequest, unavailable
from trtllm_truss.inference.admission import Admission, Slot
from trtllm_truss.inference.answer_reader import AnswerReader, EngineReader, TokenReader
from trtllm_truss.inference.call_parts import CallParts, RepeatedPrompts
from trtllm_truss.inference.deadlines import Deadlines
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.inference.merging import Item, merge_streams
from trtllm_truss.inference.preprocessing import PreparedRequest, Preprocessor, with_callers_field
from trtllm_truss.inference.start_throttle import StartThrottle
from trtllm_truss.inference.tokenization import prompt_field
from trtllm_truss.observability.metrics import CallLine, Metrics, RequestMetrics
from trtllm_truss.requests import (
    AnswerItem,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    TextDelta,
    TokenDelta,
    Usage,
)
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import ResponseStream, TritonClient
from trtllm_truss.triton.client.engine_messages import EngineRequest

if TYPE_CHECKING:
    from trtllm_truss.observability.tracing import CallTrace


class Generator:
    """Answers requests with one engine and its tokenizer.

    Args:
        connect: returns the connection to the running engine, or raises EngineUnavailable.
        limits: deadlines and the chunk interval.
        logits: limits the tokens whose logits are in memory; None if the engine returns no logits.
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
        """Stream all choices of all requests concurrently; yield items in batches as they arrive.

        The last item of a choice is a `GenerationEnd`. The first delta is sent at once; later ones
        are collected for `serving.chunk_interval_ms`. Choices queue, run and count separately; if
        one fails, all are stopped. Closing the generator, or cancelling its consumer, cancels them
        in the engine.

        Args:
            requests: at least one.
            protocol: name of the protocol, for metrics and log.
            call_id: the engine's request id of the first choice; others append their number.
            trace: receives the phases of each choice.

        Raises:
            RequestError: the engine does not support a request; nothing was sent.
            QueueFull: the queue is full or too slow.
            DeadlineExceeded: a deadline of a choice passed.
            TrussError: the engine rejected a request, failed or exited.
        """
        return self._generate(self._text, requests, protocol, call_id, trace)

    def tokens(
        self, request: GenerationRequest, protocol: str, call_id: str
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """Stream the choices of a request as tokens, for a caller that decodes them.

        As `generate`, but the last delta of a choice includes its end.

        Args:
            request: generates at least one token and has no stop words, reasoning or echo.
            protocol: name of the protocol, for metrics and log.
            call_id: the engine's request id of the first choice.

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
        """Prepare every choice of the call, in the order of the requests."""
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
        if prepared.index:  # the first prompt used the call's turn
            await self._throttle.turn(prepared.call)
        # A request that waits when the engine exits fails then: see `engine_is_gone`.
        client = self._connect()
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
                    async with client.answer(
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
                        # Its tokens are in the KV cache and its slot is free once it has stopped.
                        await asyncio.wait([stream.stopping])
            except EngineUnavailable as error:
                self._heartbeat.request_failed(error)
                raise
            except InvalidRequest as refused:
                raise with_callers_field(refused, prepared.request) from None


class _Place:
    """Holds the slots of a choice until the engine has finished its last request.

    The engine runs an abandoned request until the request is stopped. A slot released earlier would
    let the next request wait in the engine, which processes its prompt even if its client leaves.
    The logits of both would be in memory at once.

    Args:
        heartbeat: counts the request as waiting until then.

    Attributes:
        stream: stream of the last request; None before the first one.
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
    """Release the last slot after a choice's last request has finished.

    Another slot may have replaced it.
    """
    if reader.is_last and reader.request is request:
        slot.release()


async def _echo(
    prepared: PreparedRequest, record: RequestMetrics
) -> AsyncGenerator[list[AnswerItem], None]:
    """Respond to a request that generates no token."""
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
