"""The engine of a `Service`, as driven by NVIDIA Dynamo's worker.

Sources, all of ai-dynamo-runtime 1.6.1: `dynamo/_core.pyi` (class `backend`, `Context`,
`register_model`); the engine's methods are those of `dynamo/common/backend/engine.py` in ai-dynamo
1.6.1, which `backend.Worker` calls by name, so the engine needs no base class of that package.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import uvloop
from dynamo._core import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    backend,
    register_model,
)
from dynamo.llm.exceptions import (
    CannotConnect,
    ConnectionTimeout,
    EngineShutdown,
    InvalidArgument,
    Unknown,
)
from prometheus_client import REGISTRY

from trtllm_dynamo.cached_blocks import CachedBlocks
from trtllm_dynamo.requests import read_request, to_chunk
from trtllm_truss.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    QueueFull,
    RequestError,
    SettingsError,
    StartupError,
    TrussError,
)
from trtllm_truss.observability.exposition import text_format
from trtllm_truss.processes.child import temporary_folder
from trtllm_truss.protocols.base import Defaults
from trtllm_truss.protocols.openai.adapter import usable_defaults
from trtllm_truss.serving.service import Service
from trtllm_truss.validation import shown_name

if TYPE_CHECKING:
    from dynamo._core import Context, Endpoint

logger = logging.getLogger(__name__)

Start: TypeAlias = Callable[..., tuple[Service, Defaults]]
"""Starts the service with `kv_events`; returns it with the values of missing request fields."""

PROTOCOL = "dynamo"
"""Name of the protocol in metrics and log."""

_METRICS = ("trtllm_truss_", "nv_")
_LINE_BYTES = 2**26
_STORE = "DYN_FILE_KV"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Where a worker belongs in a Dynamo deployment.

    Attributes:
        name: the model's name in the frontend.
        component: the name shared by one model's workers.
        tool_call_parser: the frontend's parser of tool calls, by Dynamo's name.
        reasoning_parser: the frontend's parser of reasoning, by Dynamo's name.
        kv_events: report KV cache blocks to the router.
    """

    name: str
    namespace: str = "dynamo"
    component: str = "backend"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    kv_events: bool = False


@dataclass(frozen=True, slots=True)
class PushSource:
    """Receives the publisher of KV events. Dynamo identifies it by its class name.

    Source: `dynamo/common/backend/publisher.py` of ai-dynamo 1.6.1.
    """

    on_ready: Callable[[KvEventPublisher], None]
    dp_rank: int = 0


class KvEvents:
    """Forwards KV cache events, which Triton sends over a Unix socket.

    Only this user can access the socket's folder. A cache lives as long as its connection.

    Args:
        address: the socket, created by `open`.
    """

    def __init__(self, address: Path) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Future[CachedBlocks] = self._loop.create_future()
        self._connection: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; events wait until there is a publisher.

        Raises:
            SettingsError: the path is too long.
        """
        try:
            self._server = await asyncio.start_unix_server(
                self._receive, self.address, limit=_LINE_BYTES
            )
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {self.address} for KV events ({error}); set TMPDIR to a folder "
                "with a shorter path."
            ) from error

    def source(self, block_tokens: int) -> PushSource:
        def begin(publisher: KvEventPublisher) -> None:
            blocks = CachedBlocks(publisher, block_tokens)
            self._loop.call_soon_threadsafe(self._blocks.set_result, blocks)

        return PushSource(begin)

    def close(self) -> None:
        """Stop publishing; idempotent. A connection closes when its Triton exits."""
        if self._server is not None:
            self._server.close()
        self._connection = None

    async def _receive(self, lines: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        self._connection = connection
        blocks = await asyncio.shield(self._blocks)
        blocks.clear()
        try:
            while (line := await lines.readline()) and self._connection is connection:
                blocks.take(json.loads(line))
        except OSError:
            pass
        except Exception:
            logger.exception("KV events are no longer read")
        if self._connection is connection:
            blocks.clear()
        connection.close()


class TrussEngine:
    """The engine of one `Service`, as driven by Dynamo's `Worker`.

    Args:
        options: where the worker belongs in the deployment.
        folder: receives the model files that the frontend reads.

    Attributes:
        failure: error of a failed start.
    """

    def __init__(
        self,
        start: Start,
        options: WorkerOptions,
        folder: Path,
    ) -> None:
        self._start = start
        self._kv_events = KvEvents(Path.cwd() / "kv_events") if options.kv_events else None
        self._options = options
        self._folder = folder
        self._service: Service | None = None
        self._defaults: Defaults = {}
        self._answers: dict[str, tuple[asyncio.Task[None], Context]] = {}
        self.failure: StartupError | None = None

    @property
    def _started(self) -> Service:
        assert self._service is not None, "Dynamo starts an engine first"
        return self._service

    async def start(self, worker_id: int) -> backend.EngineConfig:
        """Start the engine and describe it; `worker_id` is not needed."""
        try:
            if self._kv_events is not None:
                await self._kv_events.open()
            address = self._kv_events and self._kv_events.address
            service, defaults = await asyncio.to_thread(self._start, kv_events=address)
        except StartupError as error:
            self.failure = error
            raise
        self._service = service
        pipeline = service.pipeline
        self._defaults = {**usable_defaults(pipeline.recommended), **defaults}
        context_tokens = pipeline.engine.max_sequence_tokens
        await asyncio.to_thread(pipeline.tokenizer.save, self._folder, context_tokens)
        return backend.EngineConfig(
            model=str(self._folder),
            served_model_name=self._options.name,
            llm=backend.LlmRegistration(
                kv_cache_block_size=pipeline.engine.cache_block_tokens, **self._sizes
            ),
        )

    @property
    def _sizes(self) -> dict[str, int | None]:
        engine, admission = self._started.pipeline.engine, self._started.pipeline.admission
        return {
            "context_length": engine.max_sequence_tokens,
            "total_kv_blocks": admission.kv_cache_tokens // engine.cache_block_tokens or None,
            "max_num_seqs": admission.max_requests,
        }

    async def on_endpoint_ready(self, endpoint: Endpoint) -> None:
        """List each adapter as a separate model, with the base model's sizes and parsers."""
        described = ModelRuntimeConfig()
        values = {
            **self._sizes,
            "tool_call_parser": self._options.tool_call_parser,
            "reasoning_parser": self._options.reasoning_parser,
        }
        for field, value in values.items():
            if value is not None:  # which it refuses
                setattr(described, field, value)
        for name in self._started.adapter_names:
            await register_model(
                ModelInput.Tokens,
                ModelType.Chat | ModelType.Completions,
                endpoint,
                str(self._folder),
                name,
                worker_type=WorkerType.Aggregated,
                kv_cache_block_size=self._started.pipeline.engine.cache_block_tokens,
                runtime_config=described,
                lora_name=name,
                base_model_path=str(self._folder),
            )

    async def generate(
        self, request: Mapping[str, Any], context: Context
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a choice, or raise the error that determines the frontend's reaction.

        `InvalidArgument` becomes status 400. After `CannotConnect`, `ConnectionTimeout` and
        `EngineShutdown` the frontend continues with another worker; after the last one it also
        stops routing to this one for seconds. Measured with two workers of 1.6.1.
        """
        chunks: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()
        call_id = context.id()
        if call_id in self._answers:  # a caller may choose it
            call_id = f"{call_id}-{secrets.token_hex(8)}"
        answer = asyncio.create_task(self._answer(request, call_id, chunks))
        # Also if the task is cancelled before it starts.
        answer.add_done_callback(lambda _: chunks.put_nowait(None))
        self._answers[call_id] = answer, context
        if _has_left(context):  # before `abort` could find it
            self._end(call_id)
        try:
            while (chunk := await chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
                chunks.task_done()
        finally:
            self._end(call_id)

    async def _answer(
        self,
        request: Mapping[str, Any],
        call_id: str,
        chunks: asyncio.Queue[dict[str, Any] | Exception | None],
    ) -> None:
        """Queue the chunks of a choice one at a time, or its error.

        A separate task, because Dynamo neither resumes nor closes the generator after its client
        has disconnected. If a client reads slowly, tokens wait in the engine's stream, at four
        bytes each.
        """
        service = self._started
        # The runtime's own probe does not specify a model.
        names = ("", self._options.name, *service.adapter_names)
        try:
            if (model := request["model"]) not in names:
                # Its adapter belongs to another worker: see `lib/llm/src/lora/filter.rs` of Dynamo.
                raise CannotConnect(f"this worker does not serve {shown_name(model)}")
            wanted = read_request(request, self._defaults, service.adapter_names)
            tokens = service.pipeline.generator.tokens(wanted, PROTOCOL, call_id)
            async with aclosing(tokens) as deltas:
                async for together in deltas:
                    for delta in together:
                        chunks.put_nowait(to_chunk(delta))
                    await chunks.join()
        except asyncio.CancelledError:
            chunks.put_nowait({"token_ids": [], "index": 0, "finish_reason": "cancelled"})
            raise
        except TrussError as error:
            chunks.put_nowait(_dynamo_error(error))
        except CannotConnect as error:
            chunks.put_nowait(error)
        except Exception as error:
            logger.exception("unhandled exception")
            chunks.put_nowait(Unknown(f"unhandled {type(error).__name__}"))

    async def abort(self, context: Context) -> None:
        """Stop the choices of clients that have disconnected.

        `context` may share its id with another.
        """
        for call_id, (_, its) in [*self._answers.items()]:
            if _has_left(its):
                self._end(call_id)

    def _end(self, call_id: str) -> None:
        answer, _ = self._answers.pop(call_id, (None, None))
        if answer is not None:
            answer.cancel()

    async def cleanup(self) -> None:
        """Stop the engine if it was started; idempotent."""
        if self._kv_events is not None:
            self._kv_events.close()
        if self._service is not None:
            await asyncio.to_thread(self._service.stop)

    async def is_quiescent(self) -> None:
        """Report that no KV blocks are being transferred."""

    async def register_prometheus(self, metrics: backend.EngineMetrics) -> None:
        """Add our metrics and Triton's to the worker's."""
        metrics.register_prometheus_expfmt_callback(
            lambda: text_format(
                each for each in REGISTRY.collect() if each.name.startswith(_METRICS)
            ).decode()
        )

    async def health_check_payload(self) -> dict[str, Any]:
        """Return the request that Dynamo sends to an idle worker."""
        tokenizer = self._started.pipeline.tokenizer
        first = tokenizer.bos_id if tokenizer.bos_id is not None else 0
        return {
            "token_ids": [first],
            "stop_conditions": {"max_tokens": 1, "ignore_eos": True},
            "sampling_options": {"temperature": 0.0},
            backend.HEALTH_CHECK_KEY: True,
        }

    async def kv_event_sources(self) -> list[PushSource]:
        if self._kv_events is None:
            return []
        return [self._kv_events.source(self._started.pipeline.engine.cache_block_tokens)]

    async def logits_processor_spec(self) -> None: ...

    def component_metrics_dp_ranks(self) -> list[int]:
        return []

    def attach_snapshot_publisher(self, publisher: object) -> None: ...

    def supported_controls(self) -> set[str]:
        return set()

    def supported_updates(self) -> set[str]:
        return set()


def _has_left(context: Context) -> bool:
    """Return True if a request's client has disconnected, or its frontend stopped it."""
    return bool(context.is_stopped() or context.is_killed())


_ERRORS: tuple[tuple[type[TrussError], type[Exception]], ...] = (
    (RequestError, InvalidArgument),
    (QueueFull, CannotConnect),
    (DeadlineExceeded, ConnectionTimeout),
    (EngineUnavailable, EngineShutdown),
)


def _dynamo_error(error: TrussError) -> Exception:
    kind = next((dynamos for ours, dynamos in _ERRORS if isinstance(error, ours)), Unknown)
    return kind(error.message)


def run_worker(start: Start, options: WorkerOptions) -> None:
    """Serve as a worker until SIGTERM or SIGINT; running requests finish first.

    Dynamo's own variables (`DYN_DISCOVERY_BACKEND`, …) configure discovery and transport.

    Raises:
        StartupError: the engine cannot start, or Dynamo's runtime fails.
    """
    if (store := os.environ.get(_STORE)) is not None:
        os.environ[_STORE] = str(Path(store).resolve())  # the worker runs in another folder
    uvloop.run(_serve(start, options))


async def _serve(start: Start, options: WorkerOptions) -> None:
    with temporary_folder() as folder:
        # The frontend compares its workers' paths as strings; relative ones agree.
        os.chdir(folder)
        engine = TrussEngine(start, options, Path("model"))
        config = backend.WorkerConfig(
            namespace=options.namespace,
            component=options.component,
            model_name="model",
            served_model_name=options.name,
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
            # Without events it would only listen on every address.
            enable_kv_routing=options.kv_events,
            runtime=backend.RuntimeConfig(),
        )
        try:
            await backend.Worker(engine, config, asyncio.get_running_loop()).run()
        except Exception as error:  # noqa: BLE001 - the runtime's own have no other base
            raise engine.failure or StartupError(
                f"Dynamo's runtime failed ({error}). Check its variables, which start with DYN_."
            ) from None
