"""The life of requests: planned, admitted, sent to the engine, and turned back into text."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from itertools import chain, count

from trtllm_truss.errors import EngineUnavailable, InvalidRequest
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.capabilities import in_callers_words
from trtllm_truss.inference.deadlines import Deadlines
from trtllm_truss.inference.decode_stream import read_answer
from trtllm_truss.inference.heartbeat import Activity
from trtllm_truss.inference.merge_streams import side_by_side
from trtllm_truss.inference.prepared_request import Plan
from trtllm_truss.inference.preprocessing import Planner
from trtllm_truss.inference.start_throttle import Turns
from trtllm_truss.inference.tokenization import prompt_field
from trtllm_truss.metrics.collector import Metrics
from trtllm_truss.metrics.request import RequestMetrics
from trtllm_truss.requests import Finish, GenerationRequest, Piece
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.failures import unavailable


class Generator:
    """Answers requests with one engine and its tokenizer."""

    def __init__(
        self,
        planner: Planner,
        tokenizer: TextTokenizer,
        connect: Callable[[], TritonClient],
        limits: Serving,
        *,
        admission: Admission,
        activity: Activity,
        metrics: Metrics,
    ) -> None:
        """Binds what an answer needs.

        Args:
            planner: makes requests ready for the engine.
            tokenizer: the one that the engine's model was trained with.
            connect: gives the connection to the engine as it runs now, or raises
                EngineUnavailable.
            limits: deadlines and the chunk interval.
            admission: decides how many requests the engine has at once.
            activity: is told of waiting and of the engine's answers.
            metrics: is told of everything that can be counted.
        """
        self._planner = planner
        self._tokenizer = tokenizer
        self._connect = connect
        self._limits = limits
        self._admission = admission
        self._activity = activity
        self._metrics = metrics
        self._turns = Turns()
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
    ) -> AsyncGenerator[tuple[int, Piece | Finish], None]:
        """All answers to all requests, side by side, each item with its request's place.

        An answer comes piece by piece; its last item is a `Finish`. Its first piece comes at once,
        later ones are collected for `serving.chunk_interval_ms`. Each of them queues, runs and is
        counted by itself; if one fails, all end. Closing the generator, or cancelling its
        consumer, ends them in the engine.

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
            # Until all is planned it is one request, and refused as one.
            record = records.enter_context(self._metrics.request_started(protocol, call_id))
            await self._turns.turn()
            plans = await self._plans(requests, call_id)
            answers = [self._answer(plans[0][1], arrived, record)]
            for _, plan in plans[1:]:
                request_id = plan.engine_request.request_id
                record = records.enter_context(self._metrics.request_started(protocol, request_id))
                answers.append(self._answer(plan, arrived, record))
            async with aclosing(side_by_side(answers)) as items:
                async for number, item in items:
                    yield plans[number][0], item

    async def _plans(
        self, requests: Sequence[GenerationRequest], call_id: str
    ) -> list[tuple[int, Plan]]:
        """Every answer's plan, with the place of its request."""
        wanted = sum(request.n for request in requests)
        if wanted > self._admission.capacity:
            raise InvalidRequest(
                f"{wanted} answers are asked for at once; at most {self._admission.capacity} can "
                "run and wait here (serving.queue_limit). Ask for fewer.",
                param=requests[0].name("n") if requests[0].n > 1 else prompt_field(requests[0]),
            )
        request_ids = chain([call_id], (f"{call_id}-{number}" for number in count(1)))
        plans: list[tuple[int, Plan]] = []
        for place, request in enumerate(requests):
            if place:
                await asyncio.sleep(0)  # running streams go on between one prompt and the next
            plans += [(place, plan) for plan in await self._planner.plan(request, request_ids)]
        return plans

    async def _answer(
        self, plan: Plan, arrived: float, record: RequestMetrics
    ) -> AsyncGenerator[Piece | Finish, None]:
        """One answer, from the queue to its end."""
        self._connect()  # without an engine there is nothing to queue for
        ticket = await self._admission.admit(plan.tokens)
        admitted = asyncio.get_running_loop().time()
        record.queued(admitted - arrived)
        try:
            async with self._connect().answer(
                plan.engine_request,
                on_end=ticket.release,
                on_stopped=record.tokens_wasted,
                on_heartbeat=self._activity.sign_of_life,
            ) as answer:
                record.sent(len(plan.prompt.ids))
                pieces = read_answer(
                    answer,
                    plan,
                    self._tokenizer,
                    Deadlines(self._limits, arrived, admitted),
                    self._limits.chunk_interval_ms / 1000,
                    record,
                    self._activity,
                )
                async with aclosing(pieces):
                    async for item in pieces:
                        yield item
        except EngineUnavailable:
            self._activity.request_failed()
            raise
        except InvalidRequest as refused:
            raise in_callers_words(refused, plan.request) from None
        finally:
            ticket.release()
