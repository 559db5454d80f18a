"""The service's own metrics; docs/metrics.md describes each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trtllm_truss.metrics.counters import PREFIX, Counters
from trtllm_truss.metrics.request import RequestMetrics
from trtllm_truss.triton.server.metrics import TritonMetrics


class Metrics(Collector):
    """Counts what happens to requests and to the engine."""

    def __init__(
        self,
        *,
        waiting: Callable[[], int],
        running: Callable[[], int],
        engine_up: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Counts from zero.

        Args:
            waiting: requests that wait for admission to the engine now.
            running: requests that the engine has now.
            engine_up: whether the engine answers now.
            clock: seconds, monotonic.
        """
        self._waiting = waiting
        self._running = running
        self._engine_up = engine_up
        self._clock = clock
        self._counters = Counters()
        self._restarts = 0

    def request_started(self, protocol: str, request_id: str) -> RequestMetrics:
        """A request that has just arrived; it must be told its end.

        Args:
            protocol: which of our protocols it came by.
            request_id: the id that the engine will know it by; one of ours, never a caller's.
        """
        return RequestMetrics(self._counters, self._clock, protocol, request_id)

    def refused(self, protocol: str, code: str) -> None:
        """A request that never became one: its body could not be understood.

        Args:
            protocol: which of our protocols it came by.
            code: the error's, as its body says it.
        """
        self.request_started(protocol, "none").failed(code)

    def engine_restarted(self) -> None:
        """Notes that the engine is started again."""
        self._restarts += 1

    def collect(self) -> Iterator[Metric]:
        """What a scrape shows."""
        yield from self._counters.families()
        for name, documentation, value in (
            ("requests_in_flight", "Requests begun and not ended.", self._counters.in_flight),
            ("requests_waiting", "Requests that wait for admission.", self._waiting()),
            ("requests_running", "Requests that the engine has.", self._running()),
            ("engine_up", "1 while the engine answers, else 0.", int(self._engine_up())),
        ):
            yield GaugeMetricFamily(PREFIX + name, documentation, value=value)
        yield CounterMetricFamily(
            f"{PREFIX}engine_restarts", "Times the engine was started again.", value=self._restarts
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that being registered asks for no values yet."""
        return ()


@contextmanager
def exposed(
    metrics: Metrics,
    triton_port: Callable[[], int | None],
    registry: CollectorRegistry = REGISTRY,
) -> Iterator[None]:
    """Shows our metrics and Triton's on Truss's `/metrics`, which shows the default registry.

    Args:
        metrics: ours.
        triton_port: Triton's metrics port; None while it is not running.
        registry: where they are shown.
    """
    with ExitStack() as stack:
        triton = stack.enter_context(TritonMetrics(triton_port))
        for collector in (metrics, triton):
            registry.register(collector)
            stack.callback(registry.unregister, collector)
        yield
