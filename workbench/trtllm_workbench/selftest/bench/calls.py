"""HTTP calls to the served Truss that keep what a check needs: status, headers, pieces, times."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trtllm_truss.triton.server.metrics import parse_metrics
from trtllm_truss.triton.server.ports import LOOPBACK

PREDICT = "/v1/models/model:predict"
READY = "/v1/models/model"
EVENTS = {"Accept": "text/event-stream"}
_READ_BYTES = 65536
_TIMEOUT_S = 120.0
_DONE = "[DONE]"


@dataclass(slots=True)
class Reply:
    """One response, read to its end.

    Attributes:
        status: HTTP status.
        headers: by lower-case name.
        body: all bytes that arrived.
        pieces: number of reads that the body arrived in.
        is_cut: the connection ended before the response did.
        first_s: seconds to the first byte of the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: int = 0
    is_cut: bool = False
    first_s: float = 0.0

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="strict" if self.status == 200 else "replace")

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[dict[str, Any]]:
        """Return the objects of a body of JSON lines."""
        return [json.loads(line) for line in self.body.splitlines() if line]

    def events(self) -> list[dict[str, Any]]:
        """Return the objects of a body of server-sent events."""
        data = (
            line.removeprefix("data:").strip()
            for frame in self.text.split("\n\n")
            for line in frame.splitlines()
            if line.startswith("data:")
        )
        return [json.loads(text) for text in data if text != _DONE]

    @property
    def complaint(self) -> str:
        """The status and the message of an error, in one short line."""
        text = self.body.decode("utf-8", errors="replace")
        try:
            error = json.loads(text)["error"]
            text = error if isinstance(error, str) else error["message"]
        except (ValueError, KeyError, TypeError):
            pass
        return f"HTTP {self.status}: {text[:300]}"


class Stream:
    """A response that is read piece by piece; `close` disconnects."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            http.client.HTTPException: the connection ended before the response did.
            OSError: the same, or no byte arrived in time.
        """
        while piece := self._response.read1(_READ_BYTES):
            yield piece

    def close(self) -> None:
        """Disconnect at once; the response is not read on."""
        self._response.close()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Api:
    """The routes of one server on loopback.

    Attributes:
        port: HTTP port.
    """

    port: int

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a body, JSON unless it is bytes, and read the whole response."""
        return self._read("POST", path, body, headers)

    def get(self, path: str) -> Reply:
        return self._read("GET", path, None, None)

    @contextmanager
    def stream(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> Iterator[Stream]:
        """Send a body and yield the response once its status has arrived; disconnect at the end."""
        stream = self.open(path, body, headers)
        try:
            yield stream
        finally:
            stream.close()

    def open(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Stream:
        """Do the same without a context; the caller closes the stream."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_TIMEOUT_S)
        try:
            _send(connection, "POST", path, body, headers)
            return Stream(connection)
        except BaseException:
            connection.close()
            raise

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels.

        Raises:
            LookupError: the page lacks the metric.
        """
        page = self.get("/metrics/").text
        samples = (sample for family in parse_metrics(page) for sample in family.samples)
        values = [sample.value for sample in samples if sample.name == name]
        if not values:
            raise LookupError(f"/metrics has no {name}")
        return sum(values)

    def is_ready(self) -> bool:
        """Return the result of the platform's health check."""
        try:
            return self.get(READY).status == http.client.OK
        except OSError:
            return False

    def _read(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None
    ) -> Reply:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_TIMEOUT_S)
        started = time.perf_counter()
        try:
            _send(connection, method, path, body, headers)
            stream = Stream(connection)
            reply = Reply(stream.status, stream.headers)
            try:
                for piece in stream.pieces():
                    if not reply.pieces:
                        reply.first_s = time.perf_counter() - started
                    reply.body += piece
                    reply.pieces += 1
            except (http.client.HTTPException, OSError):
                reply.is_cut = True
            return reply
        finally:
            connection.close()


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object,
    headers: Mapping[str, str] | None,
) -> None:
    payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(
        method, path, payload, {"Content-Type": "application/json", **(headers or {})}
    )
