"""A receiver of spans: OTLP as protobuf over HTTP."""

from __future__ import annotations

import gzip
import threading
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver(ThreadingHTTPServer):
    """Keeps what it receives, from the block's beginning to its end.

    Attributes:
        paths: of the requests.
        headers: of the requests.
        received: their bodies, as far as they were taken.

    Args:
        refusals: statuses of the first responses.
    """

    def __init__(self, *refusals: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals = list(refusals)
        self.paths: list[str] = []
        self.headers: list[Message] = []
        self.received: list[ExportTraceServiceRequest] = []
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self, service: str) -> list[Span]:
        """Return the spans of a service, in the order of their arrival."""
        return [
            span
            for body in self.received
            for resource in body.resource_spans
            if any(pair.value.string_value == service for pair in resource.resource.attributes)
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.headers.append(self.headers)
        status = self.server.refusals.pop(0) if self.server.refusals else 200
        if status == 200:
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...
