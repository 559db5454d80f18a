"""Triton's own metrics and its backends', re-exported beside ours.

A scrape of Truss's `/metrics` runs inside the event loop that carries every stream, so it must not
ask Triton: a thread asks every few seconds, and a scrape shows what it heard last. Asking costs a
millisecond or two; when Triton does not answer, nothing is shown rather than what it said before.

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

from trtllm_truss.triton.server.ports import LOOPBACK

logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_TIMEOUT_S = 0.5
_MISNAMED_COUNTER = re.compile(r"^(# TYPE \S+(?<!_total)) counter$", re.MULTILINE)


class TritonMetrics(Collector):
    """A context manager, entered once; while inside, a thread keeps the values fresh."""

    def __init__(self, port: Callable[[], int | None]) -> None:
        """Nothing is asked yet.

        Args:
            port: the metrics port of the server that runs now; None while none does.
        """
        self._port = port
        self._families: tuple[Metric, ...] = ()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="triton-metrics", daemon=True)

    def __enter__(self) -> TritonMetrics:
        self.refresh()  # the first scrape shows values
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
        """What Triton said last; at once."""
        return self._families

    def describe(self) -> Iterable[Metric]:
        """Nothing: which metrics there are is Triton's affair."""
        return ()

    def refresh(self) -> None:
        """Asks Triton now; takes half a second at most for each part of a slow answer."""
        port = self._port()
        self._families = () if port is None else fetch_metrics(port)

    def _keep_fresh(self) -> None:
        while not self._leaving.wait(_REFRESH_S):
            try:
                self.refresh()
            except Exception:
                logger.exception("Triton's metrics could not be read")
                self._families = ()


def fetch_metrics(port: int, timeout_s: float = _TIMEOUT_S) -> tuple[Metric, ...]:
    """The families that a server shows on its metrics port; none if it gives no proper answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
        return parse_metrics(body.decode()) if response.status == http.client.OK else ()
    except (OSError, http.client.HTTPException, ValueError) as error:
        logger.debug("Triton's metrics could not be read: %s", error)
        return ()
    finally:
        connection.close()


def parse_metrics(text: str) -> tuple[Metric, ...]:
    """The families of a text, every sample under its own name.

    Most of Triton's counters do not end in `_total`. prometheus_client would add that, and
    OpenMetrics forbids counters without it, so these are shown as untyped; PromQL does not mind.

    Raises:
        ValueError: the text is not in the format.
    """
    return tuple(text_string_to_metric_families(_MISNAMED_COUNTER.sub(r"\1 untyped", text)))
