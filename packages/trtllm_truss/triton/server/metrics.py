"""Metrics of Triton and its backends, re-exported with ours.

A scrape of Truss's `/metrics` runs inside the event loop that carries every stream, so it must not
wait for Triton: a thread fetches the values every few seconds (one or two milliseconds), and a
scrape returns the last ones. Only a scrape before the first values waits for them. When Triton does
not respond, nothing is exported rather than stale values.

Format: prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
"""

from __future__ import annotations

import http.client
import logging
import re
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from trtllm_truss.exposition import Rendered
from trtllm_truss.triton.server.ports import LOOPBACK

logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_TIMEOUT_S = 0.5
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Fetch the values now; blocks for up to half a second per part of a slow response."""
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
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
        return parse_metrics(body.decode()) if response.status == http.client.OK else ()
    except (OSError, http.client.HTTPException, ValueError) as error:
        logger.debug("cannot read Triton's metrics: %s", error)
        return ()
    finally:
        connection.close()


def parse_metrics(text: str) -> tuple[Metric, ...]:
    """Parse metric families, every sample under its own name.

    Most of Triton's counters do not end in `_total`. prometheus_client would append that, and
    OpenMetrics forbids counters without it, so these become untyped; PromQL treats them alike.

    Raises:
        ValueError: the text is not in the format.
    """
    families = text_string_to_metric_families(_MISNAMED_COUNTER.sub(r"\1 untyped", text))
    return tuple(Rendered(family) for family in families)
