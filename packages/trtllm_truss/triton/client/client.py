"""One asynchronous token stream per request to a Triton server.

One call serves several requests, one after another: the next one starts after the final response of
the last one. A request that ends in any other way closes its call.

Threads without an event loop use `block_on`, for instance to ask whether the server is ready.
"""

from __future__ import annotations

import asyncio
import copy
from array import array
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from traceback import clear_frames
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from trtllm_truss.errors import (
    EngineUnavailable,
    InternalError,
    TritonError,
    TrussError,
    unavailable,
)
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest
from trtllm_truss.triton.client.failures import StatusCode, from_status
from trtllm_truss.triton.client.grpc_connection import GrpcConnection, Payload
from trtllm_truss.triton.client.logits import with_log_probs
from trtllm_truss.triton.client.tensors import (
    EngineInputs,
    ResponseReader,
    encode_request,
    encode_stop,
    random_number,
    takes_numbers_only,
)
from trtllm_truss.triton.protobuf import service_pb2

_NEVER = float("inf")


def _nothing() -> None: ...


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "log-probs")


def _unreadable(error: BaseException) -> InternalError:
    return InternalError(f"the engine's response cannot be read: {error}")


class ResponseStream:
    """Collects tokens as they arrive and returns them together, to one reader.

    A token costs four bytes until it is read, so an unread stream is bounded by the request's
    `max_tokens`. No task wakes for a token unless the reader waits for one.

    Args:
        on_end: called once when the engine has finished, however slowly the stream is read.
        on_heartbeat: called for each response without tokens: an empty one, or an error other than
            EngineUnavailable.
        request_id: id of the request; a response with another id is an error.
        like: reader of an earlier request, whose cache it shares.
        complete: adds values to each chunk that take too long to compute on an event loop; called
            in a thread.

    Attributes:
        began: True once a response has arrived.
        over: True once the server has finished the request or the call.
        reader: parses the responses.
        stopping: task that stops an abandoned request, or None.
    """

    def __init__(
        self,
        on_end: Callable[[], None] | None = None,
        on_heartbeat: Callable[[], None] | None = None,
        *,
        request_id: str | None = None,
        like: ResponseReader | None = None,
        complete: Callable[[EngineChunk], EngineChunk] | None = None,
    ) -> None:
        self._complete = complete
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
        """Wait for tokens and return all that have arrived since the last call.

        Times are on the event loop's clock. May be called again after a cancellation.

        Args:
            not_before: collect tokens until this time; the end of the stream is returned at once.
            deadline: time limit for the first token.

        Returns:
            At least one token, or the final chunk; after that it must not be called again.

        Raises:
            TimeoutError: no token arrived by `deadline`.
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
            # Raise a copy: the traceback would keep the prompt alive through `self` until the next
            # collection.
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
        """Wait until the server has finished the request; return False if it does not in time."""
        deadline = self._loop.time() + within_s
        while not self.over and self._loop.time() < deadline:
            await self._woken(deadline)
        return self.over

    def message(self, payload: Payload) -> bool:
        """Receive a response; return True if it is the last one of the request."""
        if self._is_decided():
            return False
        self.began = True
        if not self.reader.read_tokens(payload, self._tokens):
            self._read(payload)
            if not isinstance(self._failure, EngineUnavailable):
                self._on_heartbeat()
        self._tell()
        return self.over and self._failure is None

    def ended(self, status: StatusCode, details: str) -> None:
        if not (self._is_decided() or self.over):
            self._failure = (
                unavailable("The engine ended its answer without finishing it.")
                if status is StatusCode.OK
                else from_status(status, details)
            )
            self._on_end()
        self.over = True
        self._wake()

    @property
    def unread(self) -> int:
        """Return the number of tokens that arrived and were not returned by `next`."""
        return len(self._tokens)

    def _is_decided(self) -> bool:
        return self._final or self._failure is not None

    def _read(self, payload: Payload) -> None:
        try:
            chunk = self.reader.read(payload)
        except TrussError as failure:
            self._failure = failure
            self.over = True
            return
        except (ValueError, DecodeError) as error:
            self._failure = _unreadable(error)
            return
        self.over = chunk.final
        if self._complete is None:
            self._take(chunk)
        else:  # its one thread keeps the order
            self._loop.run_in_executor(_thread(), self._complete, chunk).add_done_callback(
                self._completed
            )

    def _completed(self, chunk: asyncio.Future[EngineChunk]) -> None:
        if chunk.cancelled() or self._is_decided():
            return
        if (error := chunk.exception()) is not None:
            self._failure = _unreadable(error)
        else:
            self._take(chunk.result())
        self._tell()

    def _tell(self) -> None:
        """Wake the reader for new data, at once or when its next token is due."""
        if self._is_decided():
            self._on_end()
            self._wake()
        elif self._token_at < _NEVER:
            self._wake_at(self._token_at)
            self._token_at = _NEVER

    def _take(self, chunk: EngineChunk) -> None:
        self._tokens.extend(chunk.token_ids)
        self._final = chunk.final
        # an engine may report a new count when it resumes an evicted request
        if self._cached is None:
            self._cached = chunk.cached
        if chunk.cum_log_prob is not None or chunk.log_probs:
            self._cum_log_prob = chunk.cum_log_prob
            # The C++ backend sends the whole list every time; others send only new values.
            whole = len(chunk.log_probs) >= len(self._log_probs) + len(chunk.token_ids)
            self._log_probs = chunk.log_probs if whole else self._log_probs + chunk.log_probs
            self._alternatives += chunk.alternatives
        if chunk.prompt_log_probs:
            self._prompt_log_probs = chunk.prompt_log_probs
            self._prompt_alternatives = chunk.prompt_alternatives

    async def _woken(self, at: float, token_at: float = _NEVER) -> None:
        """Sleep until `at` or the end of the stream.

        A token ends the sleep, but not before `token_at`.
        """
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


SERVICE = "/inference.GRPCInferenceService"
STREAM_INFER = f"{SERVICE}/ModelStreamInfer"
_ORDER_LIMIT_S = 0.3
"""Time limit for the response to `stop`.

Together with the time to notice a disconnect, it stays below half a second.
"""
_STOP_LIMIT_S = 2.0
"""Time limit for a stopped request to end: longer than an iteration of the engine."""
_QUEUED_STOP_LIMIT_S = 60.0
"""The same for a request without a response yet, which may be in the executor's queue.

The executor stops a request only once it is active. Source: ``terminateCancelledRequests`` of
``cpp/tensorrt_llm/executor/executorImpl.cpp`` in NVIDIA/TensorRT-LLM, near 1.1.
"""
REPEAT_S, REPEAT_GROWTH = 0.02, 1.5
"""Delay before stop orders are repeated, and its growth, for engines with several instances."""
_END_LIMIT_S = 1.0
_READY_LIMIT_S = 0.5
T = TypeVar("T")
Response = TypeVar("Response", bound=Message)


class TritonClient:
    """Client of one model on one server, over one connection.

    The connection is opened at first use, inside the running event loop; a client belongs to that
    loop. A request is stopped in the engine as soon as the context of its response stream is left.

    Args:
        address: ``host:port`` of Triton's gRPC endpoint.
        tensorrt_llm_version: the version that the server's repository was rendered for.
        instances: number of instances of the model.
    """

    def __init__(
        self,
        address: str,
        *,
        tensorrt_llm_version: str | None,
        instances: int = 1,
    ) -> None:
        self._address = address
        self._instances = instances
        self._known = EngineInputs.of(tensorrt_llm_version)
        self._numbers_only = takes_numbers_only(tensorrt_llm_version)
        self._connection: GrpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._last_reader: ResponseReader | None = None
        self._knows_stop = False  # other backends treat `stop` as a request and send tokens
        self._endings: set[asyncio.Task[None]] = set()

    def answer(
        self,
        request: EngineRequest,
        *,
        on_end: Callable[[], None] | None = None,
        on_stopped: Callable[[int], None] | None = None,
        on_heartbeat: Callable[[], None] | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        """Return a context that sends one request; leaving it early stops the request.

        Args:
            on_end: see `ResponseStream`.
            on_heartbeat: see `ResponseStream`.
            on_stopped: called with the number of unread tokens once the engine has stopped a
                request that was abandoned.

        Raises:
            EngineUnavailable: the server cannot be reached.
        """
        if self._numbers_only:
            request = replace(request, request_id=random_number())
        answer = ResponseStream(
            on_end,
            on_heartbeat,
            request_id=request.request_id,
            like=self._last_reader,
            complete=partial(with_log_probs, request=request) if request.logits else None,
        )
        self._last_reader = answer.reader
        return _Exchange(self, request, answer, on_stopped)

    async def close(self) -> None:
        """Close the connection; streams in flight end with EngineUnavailable."""
        self._closed = True
        if self._endings:
            await asyncio.wait(self._endings, timeout=_END_LIMIT_S)
        if self._connection is not None:
            await self._connection.end(_END_LIMIT_S)

    async def _send(
        self, request: EngineRequest, answer: ResponseStream
    ) -> tuple[GrpcConnection, int]:
        connection = await self._connected()
        message = encode_request(request, model_name=MODEL_NAME, known=self._known)
        return connection, connection.exchange(message, answer)

    async def _connected(self) -> GrpcConnection:
        if self._connection is not None and self._connection.is_usable and not self._closed:
            return self._connection
        async with self._connecting:
            if self._closed:
                raise unavailable("The connection to the engine was closed.")
            if self._connection is None or not self._connection.is_usable:
                try:
                    self._connection = await GrpcConnection.connect(self._address, STREAM_INFER)
                except OSError as error:
                    raise unavailable(f"The engine cannot be reached: {error}.") from error
            return self._connection

    def _end_in_background(
        self,
        connection: GrpcConnection,
        call: int,
        answer: ResponseStream,
        request_id: str,
        on_stopped: Callable[[int], None] | None,
    ) -> None:
        if self._closed:
            connection.cancel(call, answer)
            return
        ending = answer.stopping = asyncio.create_task(
            self._end(connection, call, answer, request_id)
        )
        if on_stopped is not None:
            ending.add_done_callback(lambda _: on_stopped(answer.unread))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(
        self, connection: GrpcConnection, call: int, answer: ResponseStream, request_id: str
    ) -> None:
        """Stop a request in the engine; cancel its call only if the engine does not stop.

        A cancellation that meets a response on its way can abort the whole of Triton (2.51 under
        load, up to once in a thousand: ``sync.cc:105 ASSERTION FAILED: prior > 0``, or a
        segmentation fault). The ``stop`` input of the backend is harmless.
        """
        if not connection.is_usable:  # the server is stopping and accepts no order
            connection.cancel(call, answer)
            return
        orders = order_stop(connection, request_id, self._instances)
        if await orders[0][1].wait_for_end(_ORDER_LIMIT_S):
            self._knows_stop = not orders[0][1].unread
        limit_s = _STOP_LIMIT_S if answer.began else _QUEUED_STOP_LIMIT_S
        pause_s = limit_s if self._instances == 1 else REPEAT_S
        left_s = limit_s if self._knows_stop else 0.0
        while not await answer.wait_for_end(min(pause_s, left_s)):
            left_s -= pause_s
            pause_s *= REPEAT_GROWTH
            if left_s <= 0:
                connection.cancel(call, answer)
                break
            orders += order_stop(connection, request_id, self._instances)
        loop = asyncio.get_running_loop()
        # for all orders together: the request keeps its slot until then
        until = loop.time() + _END_LIMIT_S
        for number, order in orders:
            if await order.wait_for_end(until - loop.time()):
                connection.finish(number, order)
            else:
                connection.cancel(number, order)


def order_stop(
    connection: GrpcConnection, request_id: str, instances: int
) -> list[tuple[int, ResponseStream]]:
    """Send as many stop orders for a request as the model has instances.

    Triton hands each order to the instance that has been idle longest. An instance knows only its
    own requests, and answers an order for another instance's request like any other:
    `handleStopRequest` and ``mTritonRequestIdToRequestIds`` of
    ``inflight_batcher_llm/src/model_instance_state.cc`` in
    triton-inference-server/tensorrtllm_backend, v0.10.0 to v0.19.0. With two instances a single
    order always goes to the wrong one, and one of two orders at once to the right one nine times in
    ten (measured with 2.51). So repeat the orders until the request has ended.

    Returns:
        The calls and their receivers.
    """
    stop = encode_stop(request_id, model_name=MODEL_NAME)
    orders = [ResponseStream(request_id=request_id) for _ in range(instances)]
    return [(connection.exchange(stop, order), order) for order in orders]


class _Exchange:
    """The context of one request; cheaper than a generator-based one."""

    __slots__ = ("_answer", "_client", "_on_stopped", "_request", "_sent")

    def __init__(
        self,
        client: TritonClient,
        request: EngineRequest,
        answer: ResponseStream,
        on_stopped: Callable[[int], None] | None,
    ) -> None:
        self._client = client
        self._request = request
        self._answer = answer
        self._on_stopped = on_stopped

    async def __aenter__(self) -> ResponseStream:
        self._sent = await self._client._send(self._request, self._answer)
        return self._answer

    async def __aexit__(self, *error: object) -> None:
        connection, call = self._sent
        answer = self._answer
        connection.finish(call, answer)
        if not answer.over:
            self._client._end_in_background(
                connection, call, answer, self._request.request_id, self._on_stopped
            )


def block_on(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine and return its result, even if an event loop is running, as in a notebook.

    Raises:
        RuntimeError: no thread can be started.
    """
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(lambda: asyncio.run(work())).result()
        except BaseException as error:
            # A frame of `asyncio.run` holds the task, and the task holds the error: a cycle that
            # would keep the frames of all callers alive, and with them the model that one of them
            # loads.
            clear_frames(error.__traceback__)
            raise


def is_ready(address: str, model_name: str, *, server_id: str) -> bool:
    """Return True if server and model are ready; a connection error counts as not ready."""

    async def question() -> bool:
        return await asyncio.wait_for(_is_ready(address, model_name, server_id), _READY_LIMIT_S)

    try:
        return block_on(question)
    # raised last, if no thread can be started
    except (OSError, asyncio.TimeoutError, DecodeError, RuntimeError):
        return False


@dataclass(frozen=True, slots=True)
class Trial:
    """A request that a start must answer before it counts as ready.

    Attributes:
        setting: the setting that promised it, for the error; empty for the plain request.
        request: the request as clients send it.
    """

    setting: str
    request: EngineRequest

    @property
    def condition(self) -> str:
        return f" with {self.setting}" if self.setting else ""


def warm_up(address: str, trials: Sequence[Trial], timeout_s: float, version: str) -> None:
    """Have an engine answer requests one after another, so that a failure can name its setting.

    Args:
        address: ``host:port`` of Triton's gRPC endpoint.
        timeout_s: time limit for all requests together.
        version: the TensorRT-LLM version that the server's repository was rendered for.

    Raises:
        TritonError: the engine failed, or did not respond in time.
    """
    client = TritonClient(address, tensorrt_llm_version=version)
    block_on(partial(_answer_all, client, trials, timeout_s))


async def call(
    connection: GrpcConnection, method: str, request: Message, response: Response
) -> Response:
    """Fill the response of a unary call of Triton's service.

    Raises:
        ConnectionError: the call failed.
    """
    reply = _Reply()
    connection.call(f"{SERVICE}/{method}", request.SerializeToString(), reply)
    response.ParseFromString(await reply.payload)
    return response


async def _is_ready(address: str, model_name: str, server_id: str) -> bool:
    """Check readiness, and the server's name last: another ready server may have taken the port."""
    with closing(await GrpcConnection.connect(address)) as connection:
        server, model = service_pb2.ServerReadyResponse(), service_pb2.ModelReadyResponse()
        metadata = service_pb2.ServerMetadataResponse()
        model_request = service_pb2.ModelReadyRequest(name=model_name)
        await call(connection, "ServerReady", service_pb2.ServerReadyRequest(), server)
        await call(connection, "ModelReady", model_request, model)
        await call(connection, "ServerMetadata", service_pb2.ServerMetadataRequest(), metadata)
        return bool(server.ready and model.ready and metadata.name == server_id)


async def _answer_all(client: TritonClient, trials: Sequence[Trial], timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        for trial in trials:
            try:
                async with client.answer(trial.request) as answer:
                    while not (await answer.next(deadline=deadline)).final:
                        pass
            except TrussError as failure:
                raise TritonError(
                    f"the engine failed its first request{trial.condition}: {failure.message}"
                ) from failure
            except TimeoutError:
                raise TritonError(
                    f"the engine did not answer its first request{trial.condition} within "
                    f"{timeout_s:.0f} s."
                ) from None
    finally:
        await client.close()


class _Reply:
    """Receives the response of a unary call."""

    def __init__(self) -> None:
        self.payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._message = b""

    def message(self, payload: Payload) -> bool:
        self._message = bytes(payload)
        return False

    def ended(self, status: StatusCode, details: str) -> None:
        if self.payload.done():
            return
        if status is StatusCode.OK:
            self.payload.set_result(self._message)
        else:
            self.payload.set_exception(ConnectionError(f"{status}: {details}"))
