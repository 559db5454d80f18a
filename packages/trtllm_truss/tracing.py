"""OpenTelemetry spans of calls, without text of prompts and answers.

A call is one span, from its arrival to the last byte of the response, below the caller's
`traceparent`. Below it, each answer has `queue`, `first_token` and `stream`, as far as it came.
Names of attributes are those of OpenTelemetry's conventions for generative AI and HTTP.

Spans go where Truss's server sends its own, by the same variables and secret
(``_truss_common/tracing.py`` in truss/templates/server, 0.18.35). Import this module only where
tracing is on: OpenTelemetry takes a quarter of a second to import.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from trtllm_truss.requests import GenerationRequest

logger = logging.getLogger(__name__)

_SERVICE = "trtllm-truss"
_ENDPOINT, _TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_FILE = "OTEL_TRACING_NDJSON_FILE"
_HONEYCOMB_DATASET, _HONEYCOMB_URL = "HONEYCOMB_DATASET", "https://api.honeycomb.io/v1/traces"
_FILE_BUFFER_BYTES = 1 << 20  # a batch is one write, between the lines of Truss's own spans
_LONGEST_NAME = 128
_CLOSE_LIMIT_S = 3.0
_PHASES = ("queue", "first_token", "stream")
_UNSET = Status(StatusCode.UNSET)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Tracing:
    """Begins the traces of calls, and exports their spans in batches from a thread.

    Args:
        processors: receive ended spans.
    """

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
        self._provider = TracerProvider(resource=resource)  # it ends the processors at exit
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._processors = tuple(processors)
        self._scope = InstrumentationScope(_SERVICE)

    def begin(self, headers: Mapping[str, str], route: str, call_id: str) -> CallTrace | None:
        """Begin the span of a call; None if the sampler leaves it out.

        Args:
            headers: of the HTTP request, with the caller's `traceparent` and `tracestate`.
            route: path of the request.
            call_id: the engine's request id of the first answer.
        """
        context = propagate.extract(headers)
        parent = trace.get_current_span(context).get_span_context()
        ids = self._provider.id_generator
        trace_id = parent.trace_id if parent.is_valid else ids.generate_trace_id()
        sampling = self._provider.sampler.should_sample(
            context, trace_id, f"POST {route}", SpanKind.SERVER
        )
        if sampling.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        span = SpanContext(trace_id, ids.generate_span_id(), False, _SAMPLED, sampling.trace_state)
        return CallTrace(self, span, parent if parent.is_valid else None, route, call_id)

    def new_span_context(self, above: SpanContext) -> SpanContext:
        """Return the context of a span below another one."""
        span_id = self._provider.id_generator.generate_span_id()
        return SpanContext(above.trace_id, span_id, False, above.trace_flags, above.trace_state)

    def export(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Any],
        error: str | None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """Hand an ended span to the processors.

        A tracer's spans can change until they end and lock at every change, which takes ten times
        as long as the finished span that exporters read.
        """
        span = ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._provider.resource,
            attributes=attributes,
            kind=kind,
            status=_UNSET if error is None else Status(StatusCode.ERROR, error),
            start_time=times_ns[0],
            end_time=times_ns[1],
            instrumentation_scope=self._scope,
        )
        for processor in self._processors:
            processor.on_end(span)

    def flush(self) -> None:
        """Export what is left, and go on."""
        self._provider.force_flush()

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()

    def close_after_server(self) -> None:
        """Export what is left when uvicorn has shut down, within `_CLOSE_LIMIT_S`.

        uvicorn then repeats the signal that ended it, which ends the process without exit handlers
        unless it is process 1: `Server.capture_signals` of uvicorn/server.py, 0.29 to 0.54.
        """
        server = getattr(sys.modules.get("uvicorn"), "Server", None)
        if server is None:
            return
        shutdown = server.shutdown

        async def shutdown_and_close(*args: Any, **named: Any) -> None:
            await shutdown(*args, **named)
            closing = threading.Thread(target=self.close, daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, _CLOSE_LIMIT_S)

        server.shutdown = shutdown_and_close


class CallTrace:
    """The span of one call and those of its answers. Belongs to one event loop.

    Args:
        tracing: exports the spans.
        span: context of the call's span.
        parent: context of the caller's span, if any.
        route: path of the request.
        call_id: the engine's request id of the first answer.
    """

    __slots__ = (
        *("_answers", "_attributes", "_began_s", "_call_id", "_epoch_ns", "_error", "_finished"),
        *("_has_ended", "_name", "_parent", "_span", "_tracing"),
    )

    def __init__(
        self,
        tracing: Tracing,
        span: SpanContext,
        parent: SpanContext | None,
        route: str,
        call_id: str,
    ) -> None:
        self._tracing = tracing
        self._span = span
        self._parent = parent
        self._call_id = call_id
        self._began_s = time.monotonic()
        self._epoch_ns = time.time_ns() - int(self._began_s * 1e9)
        self._name = f"POST {route}"
        self._attributes: dict[str, Any] = {
            "http.route": route,
            "gen_ai.response.id": call_id,
        }
        self._finished: list[str] = []
        self._error: str | None = None
        self._has_ended = False

    def headers(self) -> dict[str, str]:
        """Return the headers that put further spans below the call's."""
        span = self._span
        headers = {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-01"}
        if span.trace_state:
            headers["tracestate"] = span.trace_state.to_header()
        return headers

    def describe(self, requests: Sequence[GenerationRequest], *, is_streamed: bool) -> None:
        """Name the span by the requests of the call's body."""
        request = requests[0]
        operation = "text_completion" if request.messages is None else "chat"
        self._name = operation
        about = self._attributes
        about["gen_ai.operation.name"] = operation
        about["gen_ai.request.stream"] = is_streamed
        if request.model:
            about["gen_ai.request.model"] = model = request.model[:_LONGEST_NAME]
            self._name = f"{operation} {model}"
        if request.max_tokens_given:
            about["gen_ai.request.max_tokens"] = request.max_tokens
        if (choices := sum(request.n for request in requests)) > 1:
            about["gen_ai.request.choice.count"] = choices

    def answered(
        self,
        request_id: str,
        begun_s: Sequence[float | None],
        ended_s: float,
        *,
        reason: str | None,
        error: str | None,
        input_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int,
    ) -> None:
        """Export the phases of an answer that has ended.

        Args:
            request_id: the engine's.
            begun_s: when each phase began, on the clock of `time.monotonic`; None from the first
                phase on that did not begin.
            ended_s: when the answer ended.
            reason: finish reason; None without a whole answer.
            error: code of the error that ended it, if any.
            input_tokens: tokens of the prompt; None if it was not sent.
            cached_tokens: of these, tokens found in the KV cache; None if unknown.
            output_tokens: generated tokens.
        """
        if reason is not None:
            self._finished.append(reason)
        self._error = self._error or error
        for name, count in (
            ("gen_ai.usage.input_tokens", input_tokens),
            ("gen_ai.usage.output_tokens", output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", cached_tokens),
        ):
            if count is not None:
                self._attributes[name] = self._attributes.get(name, 0) + count
        about = {} if request_id == self._call_id else {"gen_ai.response.id": request_id}
        for name, start_s, end_s in zip(_PHASES, begun_s, (*begun_s[1:], None), strict=True):
            assert start_s is not None, "the last phase that began ends the loop"
            is_last = end_s is None
            self._tracing.export(
                name,
                self._tracing.new_span_context(self._span),
                self._span,
                (self._at(start_s), self._at(ended_s if end_s is None else end_s)),
                {**about, "error.type": error} if is_last and error else about,
                error if is_last else None,
            )
            if is_last:
                break

    def responds(self, status: int | None, error: str | None = None) -> None:
        """Note the response: its HTTP status, and the code of the error that it reports.

        Without a status the call was cancelled before there was one.
        """
        if status is not None:
            self._attributes["http.response.status_code"] = status
        self._error = self._error or error or (None if status else "cancelled")

    def client_left(self) -> None:
        """Note that the client disconnected before the end of the response."""
        self._error = self._error or "cancelled"

    def end(self) -> None:
        """Export the span of the call, after the last byte of the response; idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        about = self._attributes
        if self._finished:
            about["gen_ai.response.finish_reasons"] = tuple(self._finished)
        if self._error is not None:
            about["error.type"] = self._error
        times_ns = (self._at(self._began_s), self._at(time.monotonic()))
        self._tracing.export(
            self._name, self._span, self._parent, times_ns, about, self._error, SpanKind.SERVER
        )

    def _at(self, monotonic_s: float) -> int:
        return self._epoch_ns + int(monotonic_s * 1e9)


class _JsonLines(ConsoleSpanExporter):
    """Appends spans to a file, for tests and debugging."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", _FILE_BUFFER_BYTES, encoding="utf-8")  # noqa: SIM115
        super().__init__(out=self._file, formatter=lambda span: f"{span.to_json(indent=None)}\n")

    def shutdown(self) -> None:
        self._file.close()


def open_tracing(honeycomb_api_key: str = "") -> Tracing | None:
    """Begin to export to the places that the environment names; None without any.

    Args:
        honeycomb_api_key: the secret `HONEYCOMB_API_KEY`, empty if not set.
    """
    environ = os.environ
    processors: list[SpanProcessor] = []
    if environ.get(_ENDPOINT) or environ.get(_TRACES_ENDPOINT):
        processors.append(BatchSpanProcessor(OTLPSpanExporter(endpoint=_whole_url(environ))))
    if path := environ.get(_FILE):
        processors.append(BatchSpanProcessor(_JsonLines(path)))
    dataset = environ.get(_HONEYCOMB_DATASET)
    if dataset and honeycomb_api_key:
        keys = {"x-honeycomb-team": honeycomb_api_key, "x-honeycomb-dataset": dataset}
        exporter = OTLPSpanExporter(endpoint=_HONEYCOMB_URL, headers=keys)
        processors.append(BatchSpanProcessor(exporter))
    if not processors:
        logger.warning(
            "runtime.enable_tracing_data is true, but no spans are exported: set %s.", _ENDPOINT
        )
        return None
    return Tracing(processors)


def _whole_url(environ: Mapping[str, str]) -> str | None:
    """Return a URL with a path as it is, as Truss does; None for the exporter's own rules.

    By these a base URL is completed with ``/v1/traces``, and the variable for traces wins.
    """
    url = environ.get(_ENDPOINT, "")
    is_whole = urlsplit(url).path not in ("", "/") and not environ.get(_TRACES_ENDPOINT)
    return url if is_whole else None
