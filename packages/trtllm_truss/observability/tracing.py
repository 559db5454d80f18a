"""OpenTelemetry spans of calls, without the text of prompts and responses.

A call is one span, from its arrival to the last byte of its response, below the caller's
`traceparent`. Below it, each choice has the spans `queue`, `first_token` and `stream`, as far as it
got. Attribute names follow OpenTelemetry's conventions for generative AI and HTTP.

Spans are exported where Truss's server sends its own, with the same variables and secret
(``_truss_common/tracing.py`` in truss/templates/server, 0.18.35). Import this module only if
tracing is enabled: importing OpenTelemetry takes a quarter of a second.
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

import requests
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from requests.utils import get_environ_proxies

from trtllm_truss.errors import SettingsError
from trtllm_truss.requests import GenerationRequest

logger = logging.getLogger(__name__)

_SERVICE = "trtllm-truss"
_PREFIX = "OTEL_EXPORTER_OTLP"
_FILE = "OTEL_TRACING_NDJSON_FILE"
_QUEUE = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUED_SPANS = 8192
"""A call may have hundreds of choices with three spans each; OpenTelemetry's default is 2048."""

_HONEYCOMB_DATASET, _HONEYCOMB_URL = "HONEYCOMB_DATASET", "https://api.honeycomb.io/v1/traces"
_FILE_BUFFER_BYTES = 1 << 20  # a batch is one write, between the lines of Truss's own spans
_DEFAULT_TIMEOUT_S = "10"
_LONGEST_NAME = 128
_CLOSE_LIMIT_S = 3.0
_PHASES = ("queue", "first_token", "stream")


class Tracing:
    """Starts the traces of calls, and exports their spans in batches from a thread."""

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
        # A variable that is not UTF-8 would make the export of every span fail.
        valid = {key: _valid(each) for key, each in resource.attributes.items()}
        self._provider = TracerProvider(resource=Resource(valid))  # stops the processors at exit
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SERVICE)

    def begin(self, headers: Mapping[str, str], route: str, call_id: str) -> CallTrace | None:
        """Start the span of a call; None if the sampler drops it.

        Args:
            headers: headers of the HTTP request, with the caller's `traceparent` and `tracestate`.
            call_id: the engine's request id of the first choice.
        """
        now_s, now_ns = time.monotonic(), time.time_ns()
        span = self._tracer.start_span(
            f"POST {route}",
            propagate.extract(headers),
            SpanKind.SERVER,
            {"http.route": route, "gen_ai.response.id": call_id},
            start_time=now_ns,
        )
        if not span.is_recording():
            return None
        return CallTrace(self._tracer, span, call_id, now_ns - int(now_s * 1e9))

    def flush(self) -> None:
        """Export pending spans, and continue."""
        self._provider.force_flush()

    def close(self) -> None:
        """Export pending spans."""
        self._provider.shutdown()

    def close_after_server(self) -> None:
        """Export pending spans after uvicorn has shut down, within `_CLOSE_LIMIT_S`.

        uvicorn then re-raises the signal that stopped it, which kills the process without exit
        handlers unless it is process 1: `Server.capture_signals` of uvicorn/server.py, 0.29 to
        0.54.
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
    """The span of one call and those of its choices. Belongs to one event loop.

    Args:
        span: the call's span, started.
        call_id: the engine's request id of the first choice.
        epoch_ns: wall-clock time at 0 of `time.monotonic`.
    """

    __slots__ = (
        *("_attributes", "_call_id", "_context", "_epoch_ns", "_error", "_finished", "_has_ended"),
        *("_span", "_tracer"),
    )

    def __init__(self, tracer: Tracer, span: Span, call_id: str, epoch_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._call_id = call_id
        self._epoch_ns = epoch_ns
        self._attributes: dict[str, Any] = {}
        self._finished: list[str] = []
        self._error: str | None = None
        self._has_ended = False

    def headers(self) -> dict[str, str]:
        """Return the headers that place further spans below the call's."""
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, self._context)
        return headers

    def describe(self, requests: Sequence[GenerationRequest], *, is_streamed: bool) -> None:
        """Name the span after the requests in the call's body."""
        request = requests[0]
        operation = "text_completion" if request.messages is None else "chat"
        name = operation
        about = self._attributes
        about["gen_ai.operation.name"] = operation
        about["gen_ai.request.stream"] = is_streamed
        if request.model:
            about["gen_ai.request.model"] = model = _valid(request.model[:_LONGEST_NAME])
            name = f"{operation} {model}"
        if request.max_tokens_given:
            about["gen_ai.request.max_tokens"] = request.max_tokens
        if (choices := sum(request.n for request in requests)) > 1:
            about["gen_ai.request.choice.count"] = choices
        self._span.update_name(name)

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
        """Export the phases of a finished choice.

        Args:
            begun_s: start time of each phase, on the clock of `time.monotonic`; None from the first
                phase on that did not start.
            reason: finish reason; None without a complete choice.
            error: code of the error that it failed with.
            input_tokens: tokens of the prompt; None if it was not sent.
            cached_tokens: those found in the KV cache; None if unknown.
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
        starts_ns = [self._at(start_s) for start_s in begun_s if start_s is not None]
        ends_ns = [*starts_ns[1:], self._at(ended_s)]
        last = len(starts_ns) - 1
        for number, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=True)):
            span = self._tracer.start_span(
                _PHASES[number], self._context, attributes=about, start_time=start_ns
            )
            if error is not None and number == last:
                _fail(span, error)
            span.end(end_ns)

    def responds(self, status: int | None, error: str | None = None) -> None:
        """Record the response: its HTTP status, and the code of the error in it.

        Without a status, the call was cancelled before there was one.
        """
        if status is not None:
            self._attributes["http.response.status_code"] = status
        self._error = self._error or error or (None if status else "cancelled")

    def client_left(self) -> None:
        """Record that the client disconnected before the end of the response."""
        self._error = self._error or "cancelled"

    def end(self) -> None:
        """End the call's span after the last byte of the response; idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._finished:
            self._attributes["gen_ai.response.finish_reasons"] = tuple(self._finished)
        self._span.set_attributes(self._attributes)
        if self._error is not None:
            _fail(self._span, self._error)
        self._span.end(self._at(time.monotonic()))

    def _at(self, monotonic_s: float) -> int:
        return self._epoch_ns + int(monotonic_s * 1e9)


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, error))


def _valid(value: Any) -> Any:
    """Return a value with lone surrogates replaced, which UTF-8 cannot encode."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


class _JsonLines(ConsoleSpanExporter):
    """Appends spans to a file, for tests and debugging."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", _FILE_BUFFER_BYTES, encoding="utf-8")  # noqa: SIM115
        super().__init__(out=self._file, formatter=lambda span: f"{span.to_json(indent=None)}\n")

    def shutdown(self) -> None:
        self._file.close()


class _OtlpOverHttp(OTLPSpanExporter):
    """OpenTelemetry's exporter, with its log replaced by one line for lost spans.

    Its own lines contain texts of errors and responses, which may include a password from the URL
    or a key.

    Args:
        headers: headers of each request; None uses those from the environment.

    Raises:
        SettingsError: a variable has an invalid value.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self._outcome = _Outcome(url)
        super().__init__(
            url,
            headers=headers,
            timeout=_timeout_s(_variable("TIMEOUT") or _DEFAULT_TIMEOUT_S),
            compression=_compression(_variable("COMPRESSION") or "none"),
            session=self._outcome,
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._outcome.text = "they were not sent"
        _quiet.is_exporting = True
        try:
            result = super().export(spans)
        except Exception as error:  # noqa: BLE001 - 1.25 raises those of requests
            self._outcome.text = type(error).__name__
            result = SpanExportResult.FAILURE
        finally:
            _quiet.is_exporting = False
        if result is not SpanExportResult.SUCCESS:
            logger.error("%d spans are lost: %s.", len(spans), self._outcome.text)
        return result


class _Outcome(requests.Session):
    """A session that keeps the outcome of its last request.

    Attributes:
        text: HTTP status or name of the error, without a URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.text = ""
        # A proxy URL with a user name does not stay in the environment.
        self.proxies = get_environ_proxies(url)

    def request(self, *args: Any, **named: Any) -> requests.Response:
        try:
            response = super().request(*args, **named)
        except Exception as error:
            self.text = type(error).__name__
            raise
        self.text = f"HTTP {response.status_code}"
        return response


class _Quiet(threading.local):
    is_exporting = False


_quiet = _Quiet()
logging.getLogger(OTLPSpanExporter.__module__).addFilter(lambda _: not _quiet.is_exporting)


def _variable(name: str) -> str:
    """Return a setting of the exporter from the environment."""
    environ = os.environ
    return environ.get(f"{_PREFIX}_TRACES_{name}") or environ.get(f"{_PREFIX}_{name}") or ""


def _timeout_s(value: str) -> float:
    try:
        if (timeout_s := float(value)) > 0:
            return timeout_s
    except ValueError:
        pass
    raise SettingsError(f"{_PREFIX}_TIMEOUT is {value!r}; it must be a number of seconds, above 0.")


def _compression(value: str) -> Compression:
    try:
        return Compression(value.lower())
    except ValueError:
        known = ", ".join([each.value for each in Compression])
        raise SettingsError(
            f"{_PREFIX}_COMPRESSION is {value!r}; it must be one of {known}."
        ) from None


def open_tracing(honeycomb_api_key: str = "") -> Tracing | None:
    """Start exporting to the places given in the environment; None if there are none.

    Args:
        honeycomb_api_key: the secret `HONEYCOMB_API_KEY`, empty if not set.
    """
    environ = os.environ
    processors: list[SpanProcessor] = []
    if url := _url():
        processors.append(_batched(_OtlpOverHttp(url)))
    if path := environ.get(_FILE):
        processors.append(_batched(_JsonLines(path)))
    dataset = environ.get(_HONEYCOMB_DATASET)
    if dataset and honeycomb_api_key:
        keys = {"x-honeycomb-team": honeycomb_api_key, "x-honeycomb-dataset": dataset}
        processors.append(_batched(_OtlpOverHttp(_HONEYCOMB_URL, keys)))
    if not processors:
        logger.warning(
            "runtime.enable_tracing_data is true, but no spans are exported: set %s_ENDPOINT.",
            _PREFIX,
        )
        return None
    return Tracing(processors)


def _batched(exporter: SpanExporter) -> SpanProcessor:
    size = None if os.environ.get(_QUEUE) else _QUEUED_SPANS
    return BatchSpanProcessor(exporter, max_queue_size=size)


def _url() -> str:
    """Return the URL to post spans to; empty if there is none.

    The variable for traces is a whole URL. The other one is a base URL by OpenTelemetry's rules,
    and a whole one by Truss's: if it has a path, it is used as it is.
    """
    if url := os.environ.get(f"{_PREFIX}_TRACES_ENDPOINT", ""):
        return url
    url = os.environ.get(f"{_PREFIX}_ENDPOINT", "")
    return f"{url.rstrip('/')}/v1/traces" if url and urlsplit(url).path in ("", "/") else url
