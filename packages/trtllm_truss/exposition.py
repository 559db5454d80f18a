"""Prometheus's text format, cheap enough for gateways that scrape twenty times a second.

A scrape runs on the event loop that carries every stream. prometheus_client takes six times as long
for a page, half of it for the samples of histograms, and compresses it for most clients.

Triton's metrics are re-exported with ours. A scrape must not wait for Triton: a thread fetches the
values every few seconds (one or two milliseconds), and a scrape returns the last ones. Only a
scrape before the first values waits for them. When Triton does not respond, nothing is exported
rather than stale values.

Format: prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal
from urllib.parse import parse_qsl

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString
from starlette.types import Receive, Scope, Send

from trtllm_truss.triton.server import LOOPBACK
from trtllm_truss.validation import shown_name

_PLAIN_TYPES = ("counter", "gauge", "histogram", "summary", "unknown")
_HEADERS = [(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode())]
_NAMES = "name[]"
_MAX_NAMES = 64
_SUFFIXES = re.compile(r"_(total|created|bucket|count|sum|info)$")
_LEAST_PAUSE = 10
"""Time between two renderings, as a multiple of what the last one took."""


class MetricsPage:
    """Answers scrapes of a registry: an ASGI application for GET and HEAD.

    The page is rendered again once ten times as long has passed as that took, a few milliseconds:
    rendering takes a tenth of the event loop at most, however many scrape. Every `Accept` gets the
    text format, which all scrapers read: prometheus_client takes sixteen times as long for
    OpenMetrics. `?name[]=` chooses families.

    Args:
        registry: of what is exposed.
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
        """Return the page, rendered anew if that is due."""
        began_s = self._clock()
        if began_s >= self._until_s:
            families: dict[str, bytes] = {}
            for family in self._registry.collect():
                text = families.get(family.name, b"") + _family(family).encode()
                families[family.name] = text
            self._families, self._page = families, b"".join(families.values())
            ended_s = self._clock()
            self._until_s = ended_s + _LEAST_PAUSE * (ended_s - began_s)
        return self._page

    def _chosen(self, query: str) -> tuple[int, bytes]:
        """Return the status, and the families that a query names."""
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_NAMES)
        except ValueError:
            return 400, f"the query has more than {_MAX_NAMES} names; send fewer.\n".encode()
        if unknown := next((name for name, _ in fields if name != _NAMES), None):
            return 400, f"{shown_name(unknown)} is not a parameter; send {_NAMES}=.\n".encode()
        wanted = {spelling for _, name in fields for spelling in (name, _SUFFIXES.sub("", name))}
        return 200, b"".join(text for name, text in self._families.items() if name in wanted)


def exposition(families: Iterable[Metric]) -> str:
    """Return families as `prometheus_client.generate_latest` does."""
    return "".join([_family(family) for family in families])


class Rendered(Metric):
    """A family that does not change, and is formatted once."""

    def __init__(self, family: Metric) -> None:
        super().__init__(family.name, family.documentation, family.type)
        self.samples = family.samples
        self._text = _family(family)

    def text(self) -> str:
        return self._text


class Histogram:
    """A histogram with fixed buckets, cheap enough for the token stream.

    prometheus_client's takes a lock for every observation. This one is written only by the event
    loop and counts in plain integers; a concurrent scrape misses one observation at most.

    Args:
        name: name of the family, with its unit.
        documentation: one sentence for `# HELP`.
        bounds: inclusive upper bounds of the buckets, ascending; larger values are counted too.
    """

    __slots__ = ("_bounds", "_counts", "_documentation", "_name", "_page", "_sum")

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        series = [_series(f"{name}_bucket", (("le", le),)) for le, _ in self._buckets()]
        lines = "".join([f"{each}\0\n" for each in (*series, f"{name}_count")])
        page = f"{_head(name, 'histogram', documentation)}{lines}{name}_sum "
        self._page = page.replace("%", "%%").replace("\0", " %d.0")

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def family(self) -> Metric:
        return _HistogramFamily(self)

    def metric(self) -> Metric:
        return HistogramMetricFamily(
            self._name, self._documentation, buckets=[*self._buckets()], sum_value=self._sum
        )

    def text(self) -> str:
        counts = [*accumulate(self._counts)]
        return f"{self._page % (*counts, counts[-1])}{_number(self._sum)}\n"

    def _buckets(self) -> Iterator[tuple[str, float]]:
        labels = (*map(str, self._bounds), "+Inf")
        return zip(labels, accumulate(self._counts), strict=True)


class _Unmade(Metric):
    """A family whose samples are made only for those who ask for them."""

    def metric(self) -> Metric:
        """Return the family as prometheus_client has it."""
        raise NotImplementedError

    def text(self) -> str:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self).update(vars(self.metric()))
        return object.__getattribute__(self, name)


class _HistogramFamily(_Unmade):
    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram

    def metric(self) -> Metric:
        return self._histogram.metric()

    def text(self) -> str:
        return self._histogram.text()


class Numbers(_Unmade):
    """A counter or gauge.

    Args:
        documentation: one sentence for `# HELP`.
        numbers: one, or one by each value of the label.
        label: its name; empty without.
    """

    def __init__(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        documentation: str,
        numbers: Mapping[str, float] | float,
        label: str = "",
    ) -> None:
        self._about = kind, name, documentation
        self._numbers = numbers
        self._label = label

    def metric(self) -> Metric:
        kind, name, documentation = self._about
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        if not isinstance(self._numbers, Mapping):
            return family(name, documentation, value=self._numbers)
        labelled = family(name, documentation, labels=[self._label])
        for value, number in list(self._numbers.items()):  # the event loop may add one meanwhile
            labelled.add_metric([value], number)
        return labelled

    def text(self) -> str:
        kind, name, documentation = self._about
        head = _head(name, kind, documentation)
        sample = f"{name}_total" if kind == "counter" else name
        if not isinstance(self._numbers, Mapping):
            return f"{head}{_series(sample, ())} {_number(self._numbers)}\n"
        lines = [
            f"{_series(sample, ((self._label, value),))} {_number(number)}\n"
            for value, number in list(self._numbers.items())
        ]
        return head + "".join(lines)


def _family(family: Metric) -> str:
    if isinstance(family, Rendered | _Unmade):
        return family.text()
    if family.type not in _PLAIN_TYPES or any(sample.timestamp for sample in family.samples):
        return generate_latest(_Only(family)).decode()
    lines = [
        f"{_series(sample.name, tuple(sample.labels.items()))} {_number(sample.value)}\n"
        for sample in family.samples
    ]
    return _head(family.name, family.type, family.documentation) + "".join(lines)


@lru_cache(4096)
def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


@lru_cache(1024)
def _head(name: str, kind: str, documentation: str) -> str:
    return generate_latest(_Only(Metric(name, documentation, kind))).decode()


@lru_cache(4096)
def _series(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    family = Metric(name, "", "unknown")
    family.samples = [Sample(name, dict(labels), 0.0)]
    *_, line = generate_latest(_Only(family)).decode().splitlines()
    return line.removesuffix(" 0.0")


class _Only(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_PART_LIMIT_S = 0.5
_ANSWER_LIMIT_S = 2.0
_MOST_BYTES = 1 << 20
"""Triton's page has 5 kB, and 2 kB more per GPU."""

_FIRST_S = 0.2
_MISNAMED_COUNTER = re.compile(r"^(# TYPE \S+(?<!_total)) counter$", re.MULTILINE)


class TritonMetrics(Collector):
    """Collector whose values a thread refreshes; a context manager, entered once.

    Args:
        port: returns the metrics port of the running server; None while none runs.
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
        """Return nothing, so registration does not trigger a collect."""
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
    """Return the metric families on a server's metrics port; none after any error."""
    try:
        response = http.client.HTTPResponse(_Received(_answer(port)))  # type: ignore[arg-type]
        response.begin()
        body = response.read()
        return parse_metrics(body.decode()) if response.status == http.client.OK else ()
    except (OSError, http.client.HTTPException, ValueError) as error:
        logger.debug("cannot read Triton's metrics: %s", error)
        return ()


class _Received:
    """Stands for a socket that has sent all it had, as far as `http.client` reads it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _answer(port: int) -> bytes:
    """Return all that a server sends until it closes the connection.

    `http.client` limits neither the length of an answer nor its time as a whole.

    Raises:
        OSError: it sends nothing for too long, or is too slow.
        ValueError: it sends too much.
    """
    until_s = time.monotonic() + _ANSWER_LIMIT_S
    received = bytearray()
    with socket.create_connection((LOOPBACK, port), _PART_LIMIT_S) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while part := connection.recv(_MOST_BYTES):
            received += part
            if len(received) > _MOST_BYTES:
                raise ValueError(f"the answer has more than {_MOST_BYTES} bytes")
            if (left_s := until_s - time.monotonic()) <= 0:
                raise TimeoutError(f"the answer takes more than {_ANSWER_LIMIT_S:g} s")
            connection.settimeout(min(_PART_LIMIT_S, left_s))
    return bytes(received)


def parse_metrics(text: str) -> tuple[Metric, ...]:
    """Parse metric families, every sample under its own name.

    Most of Triton's counters do not end in `_total`. prometheus_client would append that, and
    OpenMetrics forbids counters without it, so these become untyped; PromQL treats them alike.

    Raises:
        ValueError: the text is not in the format.
    """
    families = text_string_to_metric_families(_MISNAMED_COUNTER.sub(r"\1 untyped", text))
    return tuple(Rendered(family) for family in families)
