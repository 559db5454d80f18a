"""The metrics page, its histograms, and Triton's metrics on it.

The page re-exports Triton's metrics. A scrape must not wait for Triton: a thread fetches the values
every few seconds (in one or two milliseconds), and a scrape returns the last ones. Only a scrape
before the first values waits for them. If Triton does not respond, nothing is exported rather than
stale values.
"""

from __future__ import annotations

import http.client
import io
import logging
import math
import re
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from urllib.parse import parse_qsl

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.validation import shown_name

_HEADERS = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_NAMES = "name[]"
_MAX_NAMES = 64
_SUFFIXES = re.compile(r"_(total|created|bucket|count|sum|info)$")
_LEAST_PAUSE = 10
"""Minimum time between two renderings, as a multiple of the duration of the last one."""


class MetricsPage:
    """Serves scrapes of a registry: an ASGI application for GET and HEAD.

    A scrape runs on the event loop that carries every stream. The page is re-rendered only after
    ten times the duration of the last rendering, about 3 ms, so rendering takes a tenth of the
    event loop at most, however many scrapers there are. Any `Accept` gets the text format, which
    all scrapers read: OpenMetrics takes prometheus_client longer. `?name[]=` selects families.

    Args:
        registry: registry of the exposed metrics.
        clock: seconds, monotonic.
    """

    def __init__(
        self, registry: Collector = REGISTRY, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._families: Mapping[str, bytes] = {}
        self._page = b""
        self._until_s = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = 200, self._current()
        if query := scope.get("query_string"):
            status, body = self._chosen(query.decode("latin-1"))
        headers = [*_HEADERS, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _current(self) -> bytes:
        """Return the page, re-rendered if that is due."""
        began_s = self._clock()
        if began_s >= self._until_s:
            families: dict[str, bytes] = {}
            for family in self._registry.collect():
                text = text_format([family])
                families[family.name] = families.get(family.name, b"") + text
            self._families, self._page = families, b"".join(families.values())
            ended_s = self._clock()
            self._until_s = ended_s + _LEAST_PAUSE * (ended_s - began_s)
        return self._page

    def _chosen(self, query: str) -> tuple[int, bytes]:
        """Return the status, and the families that a query selects."""
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_NAMES)
        except ValueError:
            return 400, f"the query has more than {_MAX_NAMES} names; send fewer.\n".encode()
        if unknown := next((name for name, _ in fields if name != _NAMES), None):
            return 400, f"{shown_name(unknown)} is not a parameter; send {_NAMES}=.\n".encode()
        wanted = {spelling for _, name in fields for spelling in (name, _SUFFIXES.sub("", name))}
        return 200, b"".join(text for name, text in self._families.items() if name in wanted)


def text_format(families: Iterable[Metric]) -> bytes:
    """Return families in Prometheus's text format."""
    return generate_latest(_Families(families))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Histogram:
    """A histogram with fixed buckets, cheap enough for the token stream.

    prometheus_client's takes a lock for every observation, 1.5 µs against 0.4 µs, and counts one
    value at a time. This one is written only by the event loop and counts in plain integers; a
    concurrent scrape misses one observation at most.

    Args:
        name: name of the family, with its unit.
        documentation: one sentence for `# HELP`.
        bounds: inclusive upper bounds of the buckets, ascending; larger values are also counted.
    """

    __slots__ = ("_bounds", "_counts", "_documentation", "_name", "_sum")

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def family(self) -> Metric:
        labels = (*map(str, self._bounds), "+Inf")
        buckets = [*zip(labels, accumulate(self._counts), strict=True)]
        return HistogramMetricFamily(
            self._name, self._documentation, buckets=buckets, sum_value=self._sum
        )


logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_PART_LIMIT_S = 0.5
_ANSWER_LIMIT_S = 2.0
_MOST_BYTES = 1 << 20
"""Triton's page has 5 kB, plus 2 kB per GPU."""

_FIRST_S = 0.2
_MISNAMED_COUNTER = re.compile(r"^(# TYPE \S+(?<!_total)) counter$", re.MULTILINE)


class TritonMetrics(Collector):
    """Collector whose values a thread refreshes; a context manager, entered once.

    Args:
        port: returns the running server's metrics port; None while none is running.
    """

    def __init__(self, port: Callable[[], int | None]) -> None:
        self._port = port
        self._families: tuple[Metric, ...] = ()
        self._fetched = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="triton-metrics", daemon=True)

    def __enter__(self) -> TritonMetrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        self._families = ()

    def collect(self) -> Iterable[Metric]:
        self._fetched.wait(_FIRST_S)
        return self._families

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration does not trigger a collect."""
        return ()

    def refresh(self) -> None:
        """Fetch the values now; blocks for up to two seconds."""
        port = self._port()
        self._families = () if port is None else fetch_metrics(port)

    def _keep_fresh(self) -> None:
        while True:
            try:
                self.refresh()
            except Exception:
                logger.exception("cannot read Triton's metrics")
                self._families = ()
            self._fetched.set()
            if self._leaving.wait(_REFRESH_S):
                return


def fetch_metrics(port: int) -> tuple[Metric, ...]:
    """Return the metric families from a server's metrics port; none after any error."""
    try:
        response = http.client.HTTPResponse(_Received(_answer(port)))  # type: ignore[arg-type]
        response.begin()
        body = response.read()
        return parse_metrics(body.decode()) if response.status == http.client.OK else ()
    except (OSError, http.client.HTTPException, ValueError) as error:
        logger.debug("cannot read Triton's metrics: %s", error)
        return ()


class _Received:
    """A substitute for a socket that has received everything, for `http.client`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _answer(port: int) -> bytes:
    """Return everything that a server sends until it closes the connection.

    `http.client` limits neither the length of a response nor its total time.

    Raises:
        OSError: it pauses too long, or is too slow.
        ValueError: it sends too much.
    """
    until_s = time.monotonic() + _ANSWER_LIMIT_S
    received = bytearray()
    with socket.create_connection((LOOPBACK, port), _PART_LIMIT_S) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while part := connection.recv(_MOST_BYTES):
            received += part
            if len(received) > _MOST_BYTES:
                raise ValueError(f"the response has more than {_MOST_BYTES} bytes")
            if (left_s := until_s - time.monotonic()) <= 0:
                raise TimeoutError(f"the response takes more than {_ANSWER_LIMIT_S:g} s")
            connection.settimeout(min(_PART_LIMIT_S, left_s))
    return bytes(received)


def parse_metrics(text: str) -> tuple[Metric, ...]:
    """Parse metric families, each sample under its own name.

    Most of Triton's counters do not end in `_total`. prometheus_client would append it, and
    OpenMetrics forbids counters without it, so these become untyped; PromQL treats them alike.

    Raises:
        ValueError: the text is not in the format.
    """
    text = _MISNAMED_COUNTER.sub(r"\1 untyped", text)
    return tuple(text_string_to_metric_families(text))
