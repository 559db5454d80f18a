"""The metrics of the service since its start, as described in docs/metrics.md."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from prometheus_client import REGISTRY, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trtllm_truss import __version__
from trtllm_truss.errors import InternalError, StartupError, TrussError
from trtllm_truss.observability.exposition import Histogram, TritonMetrics
from trtllm_truss.requests import FinishReason

if TYPE_CHECKING:
    from trtllm_truss.observability.tracing import CallTrace

PREFIX = "trtllm_truss_"


class Load(NamedTuple):
    """The load on which admission decisions are based.

    Attributes:
        waiting: requests that wait for admission.
        running: requests in the engine.
        max_running: limit of running requests.
        reserved_tokens: KV cache tokens reserved for them: prompt and maximum output of each.
        limit_tokens: tokens that may be reserved; 0 without a limit or if unknown.
        cache_tokens: size of the KV cache, even without a limit; 0 if unknown.
        block_tokens: tokens per block of the KV cache; 0 before the engine is known.
    """

    waiting: int = 0
    running: int = 0
    max_running: int = 0
    reserved_tokens: int = 0
    limit_tokens: int = 0
    cache_tokens: int = 0
    block_tokens: int = 0

    def utilization(self, held_tokens: int) -> float:
        """Return the share of the KV cache that is unavailable to further requests, from 0 to 1.

        Args:
            held_tokens: prompt and generated tokens of the running requests. They fill the cache of
                an engine that overcommits it.
        """
        used, size = self.running, self.max_running
        if self.cache_tokens:
            used = self.reserved_tokens if self.limit_tokens else held_tokens
            size = self.cache_tokens
        return min(1.0, used / size) if size else 0.0


class MountedFiles(Protocol):
    """A check of mounted files; see `serving.repositories`."""

    @property
    def unchecked_bytes(self) -> int: ...

    @property
    def differing(self) -> Sized: ...


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


class Counters:
    """Plain numbers, written by the event loop and read by scrapes.

    Known label values start at 0: a series that appears with its first event hides that event
    from `rate()`.

    Attributes:
        in_flight: requests that have not finished.
        held_tokens: prompt and generated tokens of the requests in the engine.
        waiting_adapters: requests that wait for admission, by LoRA adapter number.
        running_adapters: requests in the engine, likewise.
        prompt_tokens: tokens sent to the engine.
        cached_prompt_tokens: those found in its KV cache; None until an engine reports it.
        generation_tokens: tokens received for connected clients.
        tokens_after_disconnect: tokens received for disconnected clients.
        finished: complete choices by finish reason.
        failed: requests by error code.
        cancelled: requests with a disconnected client.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.held_tokens = 0
        self.waiting_adapters: Counter[int] = Counter()
        self.running_adapters: Counter[int] = Counter()
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
            "Time between two tokens of a choice; tokens that arrive together share their time "
            "equally.",
            _SECONDS_BETWEEN_TOKENS,
        )
        self.queue_time = Histogram(
            f"{PREFIX}queue_time_seconds",
            "Time that a request waited for admission to the engine.",
            _SECONDS_IN_QUEUE,
        )
        self.e2e_latency = Histogram(
            f"{PREFIX}e2e_latency_seconds",
            "Time from a request's arrival to the end of its whole choice.",
            _SECONDS_IN_ALL,
        )
        self.prompt_length = Histogram(
            f"{PREFIX}request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.generation_length = Histogram(
            f"{PREFIX}request_generation_tokens", "Generated tokens of a whole choice.", _TOKENS
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
            "Tokens generated for clients that had disconnected.",
            self.tokens_after_disconnect,
        )
        yield _labelled("requests_finished", "Choices, by finish reason.", "reason", self.finished)
        yield _labelled("requests_failed", "Requests that failed.", "code", self.failed)
        yield _counter("requests_cancelled", "Requests whose client disconnected.", self.cancelled)


def _counter(name: str, documentation: str, value: int) -> Metric:
    return CounterMetricFamily(PREFIX + name, documentation, value=value)


def _labelled(name: str, documentation: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, documentation, labels=[label])
    for labelled, value in list(values.items()):  # the event loop may add one meanwhile
        family.add_metric([labelled], value)
    return family


def _error_codes(error: type[TrussError]) -> Iterator[str]:
    """Yield the codes of an error class and its subclasses that a request can fail with."""
    yield error.code
    for kind in error.__subclasses__():
        if kind is not StartupError:
            yield from _error_codes(kind)


logger = logging.getLogger("trtllm_truss.requests")
_make_record = logging.getLogRecordFactory()


class Metrics(Collector):
    """Counts events of requests and of the engine.

    Args:
        engine_up: returns True while the engine responds.
        load: returns the load as admission sees it.
        adapters: names of the LoRA adapters; their numbers start at 1.
        build: labels of `trtllm_truss_build_info`: image and model.
        mounted: returns the check of mounted files, if any.
        restarts: returns the number of engine restarts.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        engine_up: Callable[[], bool],
        load: Callable[[], Load] = lambda: Load(),
        adapters: Sequence[str] = (),
        build: Mapping[str, str] = MappingProxyType({}),
        mounted: Callable[[], MountedFiles | None] = lambda: None,
        restarts: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine_up = engine_up
        self._load = load
        self._adapters = adapters
        labels = {"version": __version__, **build}
        self._build_info = GaugeMetricFamily(
            f"{PREFIX}build_info", "The deployment; the value is always 1.", labels=[*labels]
        )
        self._build_info.add_metric([*labels.values()], 1)
        self._mounted = mounted
        self._restarts = restarts
        self._clock = clock
        self._counters = Counters()

    def request_started(
        self,
        protocol: str,
        request_id: str,
        trace: CallTrace | None = None,
        line: CallLine | None = None,
    ) -> RequestMetrics:
        """Record a request's arrival; the caller must report its end.

        Args:
            request_id: the engine's request id, generated here and never a caller's.
            trace: trace of the request's call; None without one.
            line: log line of the call; None for a request that is a call by itself.
        """
        line = line or CallLine(protocol, request_id)
        return RequestMetrics(self._counters, self._clock, request_id, line, trace)

    def refused(self, protocol: str, call_id: str, error: TrussError) -> None:
        """Record a call with an invalid body, by its response's id."""
        self.request_started(protocol, call_id).failed(error.code, error.param)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        yield from self._counters.families()
        load, mounted = self._load(), self._mounted()
        yield from self._for_gateways(load)
        for name, documentation, value in (
            (
                "requests_in_flight",
                "Requests that have started and not finished.",
                self._counters.in_flight,
            ),
            ("requests_waiting", "Requests that wait for admission.", load.waiting),
            ("requests_running", "Requests in the engine.", load.running),
            (
                "kv_cache_reserved_tokens",
                "KV cache reserved for running requests.",
                load.reserved_tokens,
            ),
            ("kv_cache_tokens", "Capacity of the KV cache; 0 if unknown.", load.limit_tokens),
            ("engine_up", "1 while the engine responds, otherwise 0.", int(self._engine_up())),
            (
                "mounted_unchecked_bytes",
                "Bytes of mounted files whose contents have not been checked yet.",
                mounted.unchecked_bytes if mounted else 0,
            ),
            (
                "mounted_files_differing",
                "Mounted files that differ from the engine's manifest.",
                len(mounted.differing) if mounted else 0,
            ),
        ):
            yield GaugeMetricFamily(PREFIX + name, documentation, value=value)
        yield _counter("engine_restarts", "Number of engine restarts.", self._restarts())
        yield self._build_info

    def _for_gateways(self, load: Load) -> Iterator[Metric]:
        """Yield the metrics that endpoint pickers read, under trtllm-serve's names.

        Source: `defaultEngineConfigs` in
        ``pkg/epp/framework/plugins/datalayer/extractor/metrics/factories.go`` of llm-d/llm-d-router
        at 08cbacc8, and ``loraspec.go`` next to it, which uses the series with the largest value.
        """
        for name, documentation, value in (
            ("num_requests_waiting", "Requests that wait for admission.", load.waiting),
            ("num_requests_running", "Requests in the engine.", load.running),
            (
                "kv_cache_utilization",
                "Share of the KV cache in use; share of the batch, if the cache's size is unknown.",
                load.utilization(self._counters.held_tokens),
            ),
            ("kv_cache_tokens_per_block", "Tokens per block.", load.block_tokens),
            (
                "kv_cache_max_blocks",
                "Blocks of the KV cache; 0 if unknown.",
                load.cache_tokens // load.block_tokens if load.block_tokens else 0,
            ),
        ):
            yield GaugeMetricFamily(f"trtllm_{name}", documentation, value=value)
        if self._adapters:
            labels = {
                "max_lora": str(len(self._adapters)),
                "running_lora_adapters": self._names(self._counters.running_adapters),
                "waiting_lora_adapters": self._names(self._counters.waiting_adapters),
            }
            info = GaugeMetricFamily(
                "vllm:lora_requests_info",
                "LoRA adapters with requests; the value is the time.",
                labels=[*labels],
            )
            info.add_metric([*labels.values()], time.time())
            yield info

    def _names(self, numbers: Mapping[int, int]) -> str:
        return ",".join([self._adapters[number - 1] for number in sorted(numbers)])

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration does not trigger a collect."""
        return ()


@contextmanager
def exposed(metrics: Metrics, triton_port: Callable[[], int | None]) -> Iterator[None]:
    """Register our metrics and Triton's in the default registry, which Truss's `/metrics` exports.

    This process's own metrics are included: Truss's server unregisters prometheus_client's
    collector for them (truss 0.18.35, `templates/server/truss_server.py`).

    Args:
        triton_port: returns Triton's metrics port; None while Triton is down.
    """
    with ExitStack() as stack:
        triton = stack.enter_context(TritonMetrics(triton_port))
        for collector in (metrics, _Process(), triton):
            REGISTRY.register(collector)
            stack.callback(REGISTRY.unregister, collector)
        yield


_PROCESS_INTERVAL_S = 5.0
"""As for Triton's metrics; with 1,000 connections a reading takes eight times as long as ours."""


class _Process(ProcessCollector):
    """Memory, CPU time, open files and start time of this process, from /proc; up to 5 s old."""

    def __init__(self) -> None:
        super().__init__(registry=None)
        self._families: list[Metric] = []
        self._until_s = -math.inf

    def collect(self) -> Iterable[Metric]:
        if time.monotonic() >= self._until_s:
            self._families = [*super().collect()]
            self._until_s = time.monotonic() + _PROCESS_INTERVAL_S
        return self._families

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that two services can share a process."""
        return ()


class RequestMetrics:
    """The metrics of one request. Belongs to one event loop.

    The first call of `finished`, `failed` or `cancelled` finishes the request; later ones have no
    effect. The context manager maps an error to `failed`, and closing or cancellation to
    `cancelled`.

    Args:
        clock: seconds, monotonic.
        line: log line of the call.
        trace: trace of the request's call; None without one.
    """

    __slots__ = (
        "_adapter",
        "_admitted_s",
        "_cached_tokens",
        "_clock",
        "_counters",
        "_ended",
        "_generation_tokens",
        "_last_token_s",
        "_left",
        "_line",
        "_prompt_tokens",
        "_queue_s",
        "_request_id",
        "_started_s",
        "_trace",
        "_ttft_s",
    )

    def __init__(
        self,
        counters: Counters,
        clock: Callable[[], float],
        request_id: str,
        line: CallLine,
        trace: CallTrace | None = None,
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._line = line
        self._request_id = request_id
        self._trace = trace
        self._started_s = clock()
        self._admitted_s: float | None = None
        self._adapter: int | None = None
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self._last_token_s = 0.0
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._generation_tokens = 0
        self._ended = False
        self._left = False
        counters.in_flight += 1
        line.open += 1

    def __enter__(self) -> RequestMetrics:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, GeneratorExit | asyncio.CancelledError):
            self.cancelled()
        else:
            known = error if isinstance(error, TrussError) else InternalError("")
            self.failed(known.code, known.param)

    def waits(self, adapter: int | None) -> None:
        """Record the start of the wait for admission, with or without a LoRA adapter."""
        self._adapter = adapter
        if adapter is not None:
            self._counters.waiting_adapters[adapter] += 1

    def queued(self, wait_s: float) -> None:
        """Record the admission after a wait, possibly 0."""
        self._queue_s = wait_s
        self._admitted_s = self._clock()
        if self._adapter is not None:
            _subtract_one(self._counters.waiting_adapters, self._adapter)
            self._counters.running_adapters[self._adapter] += 1
        self._counters.queue_time.observe(wait_s)

    def sent(self, prompt_tokens: int) -> None:
        """Record that the request was sent to the engine."""
        self._prompt_tokens = prompt_tokens
        self._counters.prompt_tokens += prompt_tokens
        self._counters.held_tokens += prompt_tokens
        self._counters.prompt_length.observe(prompt_tokens)

    def cached(self, tokens: int) -> None:
        """Record the prompt tokens that the engine found in its KV cache."""
        self._cached_tokens = tokens
        self._counters.cached_prompt_tokens = (self._counters.cached_prompt_tokens or 0) + tokens

    def tokens(self, count: int) -> None:
        """Record `count` tokens that the engine has just sent together; 0 has no effect.

        Observe `count` equal latencies that add up to the time since the previous tokens. Tokens
        sent together with the first one have none.
        """
        if not count:
            return
        now_s = self._clock()
        counters = self._counters
        if self._ttft_s is None:
            self._ttft_s = ttft_s = now_s - self._started_s
            counters.time_to_first_token.observe(ttft_s)
        else:
            counters.inter_token_latency.observe((now_s - self._last_token_s) / count, count)
        self._last_token_s = now_s
        self._generation_tokens += count
        counters.generation_tokens += count
        counters.held_tokens += count

    def tokens_wasted(self, count: int) -> None:
        """Record tokens after the end; counted only after a disconnect."""
        if self._left:
            self._counters.tokens_after_disconnect += count

    def finished(self, reason: FinishReason) -> None:
        """Record a complete choice."""
        if self._ended:
            return
        total_s = self._end("finished", reason.value)
        self._counters.finished[reason.value] += 1
        if self._admitted_s is not None:  # otherwise the engine was not involved: a token count
            self._counters.e2e_latency.observe(total_s)
            self._counters.generation_length.observe(self._generation_tokens)

    def failed(self, code: str, param: str | None = None) -> None:
        """Record an error by its `code`, and the field at fault in the log."""
        if self._ended:
            return
        self._end("failed", code, param)
        self._counters.failed[code] = self._counters.failed.get(code, 0) + 1

    def cancelled(self) -> None:
        """Record a disconnect before the end."""
        if self._ended:
            return
        self._end("cancelled", None)
        self._left = True
        self._counters.cancelled += 1

    def _end(self, status: str, reason: str | None, param: str | None = None) -> float:
        """Finish the request and return the seconds since its arrival."""
        self._ended = True
        counters = self._counters
        counters.in_flight -= 1
        counters.held_tokens -= (self._prompt_tokens or 0) + self._generation_tokens
        if self._adapter is not None:
            is_running = self._queue_s is not None
            adapters = counters.running_adapters if is_running else counters.waiting_adapters
            _subtract_one(adapters, self._adapter)
        ended_s = self._clock()
        total_s = ended_s - self._started_s
        if self._trace is not None:
            ttft_s = self._ttft_s
            first_s = None if ttft_s is None else self._started_s + ttft_s
            is_finished = status == "finished"
            self._trace.answered(
                self._request_id,
                (self._started_s, self._admitted_s, first_s),
                ended_s,
                reason=reason if is_finished else None,
                error=None if is_finished else reason or status,
                input_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                output_tokens=self._generation_tokens,
            )
        self._line.ended(
            status,
            reason,
            param=param,
            times_s=(self._started_s, ended_s),
            counts={
                "prompt_tokens": self._prompt_tokens,
                "cached_tokens": self._cached_tokens,
                "generation_tokens": self._generation_tokens,
            },
            queue_s=self._queue_s,
            ttft_s=self._ttft_s,
        )
        return total_s


class CallLine:
    """The log line of one call, written once all of its choices have finished.

    Counts are sums over the choices, each with its prompt. Times are measured from the arrival of
    the first request: to the end of the longest wait, to the first token of all, and to the end of
    the last choice.

    Args:
        protocol: name of the protocol.
        call_id: the engine's request id of the first choice.

    Attributes:
        open: choices that have started and not finished.
    """

    __slots__ = (
        *("_answers", "_began_s", "_call_id", "_counts", "_outcome", "_param", "_protocol"),
        *("_queue_s", "_ttft_s", "open"),
    )

    def __init__(self, protocol: str, call_id: str) -> None:
        self._protocol = protocol
        self._call_id = call_id
        self._answers = 0
        self._began_s = 0.0
        self._counts: dict[str, int] = {}
        self._outcome: tuple[str, str | None] = ("", None)
        self._param: str | None = None
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self.open = 0

    def ended(
        self,
        status: str,
        reason: str | None,
        *,
        param: str | None,
        times_s: tuple[float, float],
        counts: Mapping[str, int | None],
        queue_s: float | None,
        ttft_s: float | None,
    ) -> None:
        """Add a choice; log the line with the last one.

        Args:
            param: field at fault; None without one.
            times_s: its arrival and end.
            counts: tokens by name; None for those not reached.
            queue_s: duration of its wait; None if it was not admitted.
            ttft_s: time from its arrival to its first token; None without one.
        """
        began_s, ended_s = times_s
        self._began_s = min(self._began_s, began_s) if self._answers else began_s
        self._answers += 1
        # The first choice that fails causes the others to be cancelled.
        if _STATUSES.index(status) > _STATUSES.index(self._outcome[0]):
            self._outcome, self._param = (status, reason), param
        for name, count in counts.items():
            if count is not None:
                self._counts[name] = self._counts.get(name, 0) + count
        if queue_s is not None:
            self._queue_s = max(queue_s, self._queue_s or 0.0)
        if ttft_s is not None:
            ttft_s += began_s - self._began_s
            self._ttft_s = ttft_s if self._ttft_s is None else min(self._ttft_s, ttft_s)
        self.open -= 1
        if not self.open:
            self._log(ended_s - self._began_s)

    def _log(self, total_s: float) -> None:
        status, reason = self._outcome
        tokens = self._counts.get("generation_tokens", 0)
        _log(
            engine_request_id=self._call_id,
            protocol=self._protocol,
            status=status,
            reason=reason,
            param=self._param if self._param and _FIELD.fullmatch(self._param) else None,
            answers=self._answers if self._answers > 1 else None,
            **self._counts,
            queue_ms=_milliseconds(self._queue_s),
            ttft_ms=_milliseconds(self._ttft_s),
            total_ms=_milliseconds(total_s),
            tokens_per_s=round(tokens / total_s, 1) if total_s > 0 else None,
        )


_STATUSES = ("", "finished", "cancelled", "failed")
"""In ascending order of severity."""

_FIELD = re.compile(r"(?!.{61})[a-z][a-z_]*\d?(?:\.[a-z][a-z_]*\d?|\[\d+\])*")
"""Fields that a line may show.

An unknown one is a caller's text, a sentence or a key, and is omitted.
"""


def _subtract_one(numbers: Counter[int], number: int) -> None:
    numbers[number] -= 1
    if not numbers[number]:  # callers choose the numbers of unnamed adapters
        del numbers[number]


def _log(**fields: str | int | float | None) -> None:
    """Log the summary of a request as `key=value` text and as fields of the log record.

    Truss's JSON formatter writes the fields as keys and adds the platform's `request_id`.

    Args:
        fields: our own values, never parts of the prompt, the output or a header; None is omitted.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    known = {name: value for name, value in fields.items() if value is not None}
    line = " ".join([f"{name}={value}" for name, value in known.items()])
    # `logger.info` would search the stack for its caller, which none of Truss's formatters writes.
    record = _make_record(logger.name, logging.INFO, __file__, 0, f"request {line}", (), None)
    record.__dict__.update(known)
    logger.handle(record)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
