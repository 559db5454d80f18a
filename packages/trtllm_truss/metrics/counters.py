"""Counters and histograms over all requests since the start of the service."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from trtllm_truss.errors import StartupError, TrussError
from trtllm_truss.requests import FinishReason

PREFIX = "trtllm_truss_"

_SECONDS_TO_FIRST_TOKEN = (
    *(0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1, 1.5, 2.5, 5, 7.5, 10, 20, 40, 60),
)
_SECONDS_BETWEEN_TOKENS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2),
)
_SECONDS_IN_QUEUE = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 20, 30, 60),
)
_SECONDS_IN_ALL = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600, 1200)
_TOKENS = tuple(2**power for power in range(16))


class Histogram:
    """A histogram with fixed buckets, cheap enough for the token stream.

    prometheus_client's takes a lock for every observation. This one is written only by the event
    loop and counts in plain integers; a concurrent scrape misses one observation at most.

    Args:
        name: name of the family, with its unit.
        documentation: one sentence for `# HELP`.
        bounds: inclusive upper bounds of the buckets, ascending; larger values are counted too.
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

    def family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(
            self._name, self._documentation, buckets=list(self._buckets()), sum_value=self._sum
        )

    def _buckets(self) -> Iterator[tuple[str, float]]:
        labels = (*map(str, self._bounds), "+Inf")
        return zip(labels, accumulate(self._counts), strict=True)


class Counters:
    """Plain numbers, written by the event loop and read by scrapes.

    Known label values start at 0: a series that appears with its first event hides that event
    from `rate()`.

    Attributes:
        in_flight: requests that have not ended.
        prompt_tokens: tokens sent to the engine.
        cached_prompt_tokens: of these, tokens that it found in its KV cache; None while no engine
            has told.
        generation_tokens: tokens received for connected clients.
        tokens_after_disconnect: tokens received for disconnected clients.
        finished: complete answers by reason.
        failed: requests by error code.
        cancelled: requests with a disconnected client.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens: int | None = None
        self.generation_tokens = 0
        self.tokens_after_disconnect = 0
        self.finished = {reason.value: 0 for reason in FinishReason}
        self.failed = dict.fromkeys(_error_codes(TrussError), 0)
        self.cancelled = 0
        self.time_to_first_token = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            _SECONDS_TO_FIRST_TOKEN,
        )
        self.inter_token_latency = Histogram(
            f"{PREFIX}inter_token_latency_seconds",
            "Time between two tokens of an answer; n tokens that come at once share their time.",
            _SECONDS_BETWEEN_TOKENS,
        )
        self.queue_time = Histogram(
            f"{PREFIX}queue_time_seconds",
            "Time that a request waited for admission to the engine.",
            _SECONDS_IN_QUEUE,
        )
        self.e2e_latency = Histogram(
            f"{PREFIX}e2e_latency_seconds",
            "Time from a request's arrival to the end of its whole answer.",
            _SECONDS_IN_ALL,
        )
        self.prompt_length = Histogram(
            f"{PREFIX}request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.generation_length = Histogram(
            f"{PREFIX}request_generation_tokens", "Generated tokens of a whole answer.", _TOKENS
        )

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        yield from (
            self.time_to_first_token.family(),
            self.inter_token_latency.family(),
            self.queue_time.family(),
            self.e2e_latency.family(),
            self.prompt_length.family(),
            self.generation_length.family(),
        )
        yield _counter("prompt_tokens", "Prompt tokens sent to the engine.", self.prompt_tokens)
        if self.cached_prompt_tokens is not None:
            yield _counter(
                "cached_prompt_tokens",
                "Prompt tokens that the engine found in its KV cache.",
                self.cached_prompt_tokens,
            )
        yield _counter("generation_tokens", "Tokens generated.", self.generation_tokens)
        yield _counter(
            "tokens_after_disconnect",
            "Tokens generated for a client that had left.",
            self.tokens_after_disconnect,
        )
        yield _labelled("requests_finished", "Answers, by how they ended.", "reason", self.finished)
        yield _labelled("requests_failed", "Requests that failed.", "code", self.failed)
        yield _counter("requests_cancelled", "Requests whose client left.", self.cancelled)


def _counter(name: str, documentation: str, value: int) -> Metric:
    return CounterMetricFamily(PREFIX + name, documentation, value=value)


def _labelled(name: str, documentation: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, documentation, labels=[label])
    for label_value, count in list(values.items()):  # the event loop may add one meanwhile
        family.add_metric([label_value], count)
    return family


def _error_codes(error: type[TrussError]) -> Iterator[str]:
    """Yield the codes of an error class and its subclasses that can end a request."""
    yield error.code
    for kind in error.__subclasses__():
        if kind is not StartupError:
            yield from _error_codes(kind)
