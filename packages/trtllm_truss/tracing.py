"""OpenTelemetry spans of calls, without text of prompts and answers.

A call is one span, from its arrival to the last byte of the response, below the caller's
`traceparent`. Below it, each answer has `queue`, `first_token` and `stream`, as far as it came.
Names of attributes are those of OpenTelemetry's conventions for generative AI and HTTP.

Spans go where Truss's server sends its own, by the same variables and secret
(``_truss_common/tracing.py`` in truss/templates/server, 0.18.35). Import this module only where
tracing is on: OpenTelemetry takes a quarter of a second to import.

A call is one entry of the export queue, and the exporter writes the bytes of its spans itself:
OpenTelemetry's exporter takes eight times as long to build messages of protobuf from them.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.re import parse_env_headers
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.util import Retry

from trtllm_truss import __version__
from trtllm_truss.errors import SettingsError
from trtllm_truss.requests import GenerationRequest

logger = logging.getLogger(__name__)

_SERVICE = "trtllm-truss"
_PREFIX = "OTEL_EXPORTER_OTLP"
_FILE = "OTEL_TRACING_NDJSON_FILE"
_HONEYCOMB_DATASET, _HONEYCOMB_URL = "HONEYCOMB_DATASET", "https://api.honeycomb.io/v1/traces"
_FILE_BUFFER_BYTES = 1 << 20  # a batch is one write, between the lines of Truss's own spans
_TRIES = Retry(
    total=4,
    allowed_methods=None,  # POST too
    status_forcelist=(429, 502, 503, 504),
    backoff_factor=0.5,
    respect_retry_after_header=False,  # it may be minutes, which fill the queue
)
_DEFAULT_TIMEOUT_S = "10"
_COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
_REPEATED = 4096  # attributes that stay encoded
_INTERNAL, _SERVER = 1, 2  # SpanKind
_START, _END = 7 << 3 | 1, 8 << 3 | 1  # tags of start_time_unix_nano and end_time_unix_nano
_TIMES = struct.Struct("<BQBQ")
_LOCAL_PARENT, _REMOTE_PARENT = (b"\x85\x01" + struct.pack("<I", flags) for flags in (0x100, 0x300))
_LONGEST_NAME = 128
_CLOSE_LIMIT_S = 3.0
_PHASES = ("queue", "first_token", "stream")
_MOST_PHASES = 48
"""Of one entry: the export queue counts entries, and a call may have hundreds of answers."""
_UNSET = Status(StatusCode.UNSET)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Tracing:
    """Begins the traces of calls, and exports their spans in batches from a thread."""

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

    def new_span_id(self) -> int:
        return self._provider.id_generator.generate_span_id()

    def export(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Any],
        error: str | None,
        phases: Sequence[Phase],
        *,
        is_ended: bool,
    ) -> None:
        """Hand the spans of a call, or of some phases of it, to the processors.

        A tracer's spans can change until they end and lock at every change, which takes ten times
        as long as the finished span that exporters read.
        """
        call = CallSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._provider.resource,
            attributes=attributes,
            kind=SpanKind.SERVER,
            status=_status(error),
            start_time=times_ns[0],
            end_time=times_ns[1],
            instrumentation_scope=self._scope,
        )
        call.phases, call.is_ended = phases, is_ended
        for processor in self._processors:
            processor.on_end(call)

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


class Phase(NamedTuple):
    """A phase of an answer."""

    name: str
    span_id: int
    times_ns: tuple[int, int]
    attributes: dict[str, str]
    error: str | None


class CallSpan(ReadableSpan):
    """The span of a call, which brings those of its answers' phases.

    Attributes:
        phases: in the order of their ends.
        is_ended: False if the entry is about the phases alone; the call's own span comes later.
    """

    phases: Sequence[Phase] = ()
    is_ended = True

    def all(self) -> list[ReadableSpan]:
        """Return the spans of the phases, and this one if the call has ended."""
        above = self.context
        below = [
            ReadableSpan(
                name=phase.name,
                context=SpanContext(
                    above.trace_id, phase.span_id, False, above.trace_flags, above.trace_state
                ),
                parent=above,
                resource=self.resource,
                attributes=phase.attributes,
                status=_status(phase.error),
                start_time=phase.times_ns[0],
                end_time=phase.times_ns[1],
                instrumentation_scope=self.instrumentation_scope,
            )
            for phase in self.phases
        ]
        return [*below, self] if self.is_ended else below


def _status(error: str | None) -> Status:
    return _UNSET if error is None else Status(StatusCode.ERROR, error)


class CallTrace:
    """The span of one call and those of its answers. Belongs to one event loop.

    Args:
        parent: context of the caller's span.
        call_id: the engine's request id of the first answer.
    """

    __slots__ = (
        *("_attributes", "_began_s", "_call_id", "_epoch_ns", "_error", "_finished"),
        *("_has_ended", "_name", "_parent", "_phases", "_span", "_tracing"),
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
        self._attributes: dict[str, Any] = {"http.route": route, "gen_ai.response.id": call_id}
        self._finished: list[str] = []
        self._phases: list[Phase] = []
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
        """Note the phases of an answer that has ended.

        Args:
            begun_s: when each phase began, on the clock of `time.monotonic`; None from the first
                phase on that did not begin.
            reason: finish reason; None without a whole answer.
            error: code of the error that ended it.
            input_tokens: tokens of the prompt; None if it was not sent.
            cached_tokens: of these, tokens found in the KV cache; None if unknown.
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
        for number, times_ns in enumerate(zip(starts_ns, ends_ns, strict=True)):
            failed = error if number == last else None
            attributes = about if failed is None else {**about, "error.type": failed}
            span_id = self._tracing.new_span_id()
            self._phases.append(Phase(_PHASES[number], span_id, times_ns, attributes, failed))
        if len(self._phases) >= _MOST_PHASES:
            self._export({}, is_ended=False)

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
        """Export the spans of the call, after the last byte of the response; idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        about = self._attributes
        if self._finished:
            about["gen_ai.response.finish_reasons"] = tuple(self._finished)
        if self._error is not None:
            about["error.type"] = self._error
        self._export(about, is_ended=True)

    def _export(self, about: Mapping[str, Any], *, is_ended: bool) -> None:
        times_ns = (self._at(self._began_s), self._at(time.monotonic()))
        phases, self._phases = self._phases, []
        self._tracing.export(
            *(self._name, self._span, self._parent, times_ns, about, self._error, phases),
            is_ended=is_ended,
        )

    def _at(self, monotonic_s: float) -> int:
        return self._epoch_ns + int(monotonic_s * 1e9)


class _JsonLines(ConsoleSpanExporter):
    """Appends spans to a file, for tests and debugging."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", _FILE_BUFFER_BYTES, encoding="utf-8")  # noqa: SIM115
        super().__init__(out=self._file, formatter=lambda span: f"{span.to_json(indent=None)}\n")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return super().export(all_spans(spans))

    def shutdown(self) -> None:
        self._file.close()


def all_spans(calls: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """Return the spans of the calls, each after those of its phases."""
    return [span for call in calls for span in _call(call).all()]


def _call(span: ReadableSpan) -> CallSpan:
    assert isinstance(span, CallSpan), "nothing else is exported"
    return span


class _OtlpOverHttp(SpanExporter):
    """Posts the spans of calls, as OpenTelemetry's exporter of the same name does.

    Of its variables, those for traces win. It waits less long before another try.

    Args:
        headers: for each request, beside those of the environment.

    Raises:
        SettingsError: a variable has a value that it cannot have.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._timeout_s = _timeout_s(_variable("TIMEOUT") or _DEFAULT_TIMEOUT_S)
        compression = _variable("COMPRESSION").lower() or "none"
        if compression not in _COMPRESSIONS:
            raise SettingsError(
                f"{_PREFIX}_COMPRESSION is {compression!r}; it must be one of "
                f"{', '.join(_COMPRESSIONS)}."
            )
        self._compress = _COMPRESSIONS[compression]
        self._session = session = requests.Session()
        # A proxy's URL with a user does not stay in the environment.
        session.proxies = get_environ_proxies(url)
        session.mount("http://", HTTPAdapter(max_retries=_TRIES))
        session.mount("https://", HTTPAdapter(max_retries=_TRIES))
        session.headers["User-Agent"] = f"{_SERVICE}/{__version__}"
        session.headers["Content-Type"] = "application/x-protobuf"
        if compression != "none":
            session.headers["Content-Encoding"] = compression
        session.headers.update(parse_env_headers(_variable("HEADERS"), liberal=True))
        session.headers.update(headers)
        session.verify = _variable("CERTIFICATE") or True
        certificate, key = _variable("CLIENT_CERTIFICATE"), _variable("CLIENT_KEY")
        session.cert = (certificate, key) if certificate and key else certificate or None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        body = self._compress(encoded([_call(span) for span in spans]))
        try:
            response = self._session.post(self._url, body, timeout=self._timeout_s)
            response.raise_for_status()
        except requests.RequestException as error:
            # Its text has the URL, which may have a password.
            status = "" if error.response is None else f" {error.response.status_code}"
            logger.error(
                "spans are lost, those of %d call(s): %s%s.",
                len(spans),
                type(error).__name__,
                status,
            )
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._session.close()


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


def encoded(calls: Sequence[CallSpan]) -> bytes:
    """Return an ``ExportTraceServiceRequest`` with the spans of calls of one `Tracing`.

    Numbers of fields are those of ``opentelemetry/proto/trace/v1/trace.proto`` and
    ``common/v1/common.proto``, 1.9.
    """
    resource = b"".join(_field(1, _pair(*pair)) for pair in calls[0].resource.attributes.items())
    scope = _field(1, _text(1, _SERVICE))
    spans = b"".join(_field(2, span) for call in calls for span in _encoded(call))
    return _field(1, _field(1, resource) + _field(2, scope + spans))


def _encoded(call: CallSpan) -> Iterator[bytes]:
    """Yield a ``Span`` for each phase of the call, and for the call if it has ended."""
    context, parent = call.context, call.parent
    trace = b"\x0a\x10" + context.trace_id.to_bytes(16, "big")
    if context.trace_state:
        trace += _text(3, context.trace_state.to_header())
    call_id = context.span_id.to_bytes(8, "big")
    below = trace + b"\x22\x08" + call_id
    for phase in call.phases:
        yield b"".join(
            (
                below,
                b"\x12\x08",
                phase.span_id.to_bytes(8, "big"),
                _named(phase.name, _INTERNAL),
                _TIMES.pack(_START, phase.times_ns[0], _END, phase.times_ns[1]),
                *(_attribute(*pair) for pair in phase.attributes.items()),
                _encoded_status(phase.error),
                _LOCAL_PARENT,
            )
        )
    if not call.is_ended:
        return
    yield b"".join(
        (
            trace,
            b"\x12\x08" + call_id,
            b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
            _named(call.name, _SERVER),
            _TIMES.pack(_START, call.start_time, _END, call.end_time),
            *(_attribute(*pair) for pair in (call.attributes or {}).items()),
            _encoded_status(call.status.description),
            _LOCAL_PARENT if parent is None or not parent.is_remote else _REMOTE_PARENT,
        )
    )


@lru_cache(_REPEATED)
def _named(name: str, kind: int) -> bytes:
    """Return the fields `name` and `kind` of a ``Span``."""
    return _text(5, name) + bytes((6 << 3, kind))


@lru_cache(_REPEATED, typed=True)
def _attribute(key: str, value: Any) -> bytes:
    """Return a field `attributes` of a ``Span``."""
    return _field(9, _pair(key, value))


@lru_cache(_REPEATED)
def _encoded_status(error: str | None) -> bytes:
    """Return the field `status` of a ``Span``."""
    return _field(15, b"" if error is None else _text(2, error) + b"\x18\x02")


def _pair(key: str, value: Any) -> bytes:
    """Return a ``KeyValue``."""
    return _text(1, key) + _field(2, _value(value))


def _value(value: Any) -> bytes:
    """Return an ``AnyValue``."""
    if isinstance(value, str):
        return _text(1, value)
    if isinstance(value, bool):
        return b"\x10" + _varint(value)
    if isinstance(value, int):
        return b"\x18" + _varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    return _field(5, b"".join(_field(1, _value(item)) for item in value))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode(errors="replace"))  # a variable may be no UTF-8


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes or a message; its number is at most 15."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number <= 0x7F:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def open_tracing(honeycomb_api_key: str = "") -> Tracing | None:
    """Begin to export to the places that the environment names; None without any.

    Args:
        honeycomb_api_key: the secret `HONEYCOMB_API_KEY`, empty if not set.
    """
    environ = os.environ
    processors: list[SpanProcessor] = []
    if url := _url():
        processors.append(BatchSpanProcessor(_OtlpOverHttp(url, {})))
    if path := environ.get(_FILE):
        processors.append(BatchSpanProcessor(_JsonLines(path)))
    dataset = environ.get(_HONEYCOMB_DATASET)
    if dataset and honeycomb_api_key:
        keys = {"x-honeycomb-team": honeycomb_api_key, "x-honeycomb-dataset": dataset}
        processors.append(BatchSpanProcessor(_OtlpOverHttp(_HONEYCOMB_URL, keys)))
    if not processors:
        logger.warning(
            "runtime.enable_tracing_data is true, but no spans are exported: set %s_ENDPOINT.",
            _PREFIX,
        )
        return None
    return Tracing(processors)


def _url() -> str:
    """Return where to post spans; empty if nowhere.

    The variable for traces is a whole URL. The other one is a base by OpenTelemetry's rules, and
    whole by Truss's: with a path it is left as it is.
    """
    if url := os.environ.get(f"{_PREFIX}_TRACES_ENDPOINT", ""):
        return url
    url = os.environ.get(f"{_PREFIX}_ENDPOINT", "")
    return f"{url.rstrip('/')}/v1/traces" if url and urlsplit(url).path in ("", "/") else url
