"""Exact token schedules, and the metrics that a scrape returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import PROCESS_COLLECTOR, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trtllm_truss import __version__
from trtllm_truss.errors import DeadlineExceeded, InvalidRequest, QueueFull
from trtllm_truss.observability.metrics import Load, Metrics, exposed
from trtllm_truss.requests import FinishReason

PREFIX = "trtllm_truss_"
Scrape = Callable[..., float | None]


class Clock:
    """A clock that the test advances, by binary fractions so that sums are exact."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(engine_up=lambda: True, load=lambda: Load(3, 2), clock=clock)


@pytest.fixture
def scraped(metrics: Metrics) -> Scrape:
    """Return one sample of a scrape; None if it is missing."""
    registry = CollectorRegistry()
    registry.register(metrics)

    def sample(name: str, **labels: str) -> float | None:
        text = generate_latest(registry).decode()
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                if each.name == PREFIX + name and each.labels == labels:
                    return each.value
        return None

    return sample


def assert_histogram(scraped: Scrape, name: str, values: list[float], bounds: list[str]) -> None:
    """Fail unless the histogram holds exactly these values."""
    for bound in bounds:
        below = sum(value <= float(bound) for value in values)
        assert scraped(f"{name}_bucket", le=bound) == below, bound
    assert scraped(f"{name}_bucket", le="+Inf") == scraped(f"{name}_count") == len(values)
    assert scraped(f"{name}_sum") == sum(values)


def test_histograms_equal_the_token_schedule(metrics, clock, scraped) -> None:
    first, second = (metrics.request_started("predict", name) for name in ("a", "b"))
    clock.now_s += 0.25
    first.queued(0.25)
    first.sent(5)
    second.queued(0.0)
    second.sent(300)
    for clock.now_s, request, count in (
        (1000.5, first, 2),  # with the first token: no gap
        (1000.75, second, 1),
        (1000.875, second, 0),  # an end without a token
        (1001.0, first, 4),  # 0.5 s: four gaps of 0.125 s
        (1001.0625, first, 1),
        (1003.75, second, 1),  # a gap above the last bucket
    ):
        request.tokens(count)
    clock.now_s = 1004.0
    first.finished(FinishReason.STOP)
    second.finished(FinishReason.LENGTH)

    seconds = ["0.005", "0.25", "0.5", "0.75", "1.0", "60.0"]
    assert_histogram(scraped, "time_to_first_token_seconds", [0.5, 0.75], seconds)
    gaps = [0.125] * 4 + [0.0625, 3.0]
    bounds = ["0.001", "0.05", "0.075", "0.1", "0.15", "1.0", "2.0"]
    assert_histogram(scraped, "inter_token_latency_seconds", gaps, bounds)
    assert_histogram(scraped, "queue_time_seconds", [0.25, 0.0], ["0.001", "0.1", "0.25", "60.0"])
    assert_histogram(scraped, "e2e_latency_seconds", [4.0, 4.0], ["3.0", "5.0", "1200.0"])
    bounds = ["1.0", "2.0", "4.0", "8.0", "256.0", "512.0", "32768.0"]
    assert_histogram(scraped, "request_prompt_tokens", [5, 300], bounds)
    assert_histogram(scraped, "request_generation_tokens", [7, 2], bounds)
    assert scraped("prompt_tokens_total") == 305
    assert scraped("generation_tokens_total") == 9


def test_answers_are_counted_by_their_reason(metrics, scraped) -> None:
    for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP):
        metrics.request_started("predict", "a").finished(reason)
    assert scraped("requests_finished_total", reason="stop") == 2
    assert scraped("requests_finished_total", reason="length") == 1


def test_counting_tokens_is_no_answer_of_the_engine(metrics, scraped) -> None:
    """Autoscalers read the latency of answers."""
    metrics.request_started("tokenize", "a").finished(FinishReason.LENGTH)
    assert scraped("requests_finished_total", reason="length") == 1
    assert scraped("e2e_latency_seconds_count") == 0
    assert scraped("request_generation_tokens_count") == 0


def test_failures_are_counted_by_their_code(metrics, scraped) -> None:
    for code in (QueueFull.code, QueueFull.code, InvalidRequest.code, "unheard_of"):
        metrics.request_started("predict", "a").failed(code)
    assert scraped("requests_failed_total", code="queue_full") == 2
    assert scraped("requests_failed_total", code="invalid_request") == 1
    assert scraped("requests_failed_total", code="unheard_of") == 1
    assert scraped("requests_failed_total", code="deadline_exceeded") == 0
    assert scraped("e2e_latency_seconds_count") == 0  # refusals are quick and no answers


def test_known_labels_start_at_zero(scraped) -> None:
    for reason in FinishReason:
        assert scraped("requests_finished_total", reason=reason.value) == 0
    for code in ("invalid_request", "queue_full", "engine_unavailable", "internal_error"):
        assert scraped("requests_failed_total", code=code) == 0
    assert scraped("requests_failed_total", code="startup_failed") is None


def test_tokens_after_a_disconnect_are_counted_separately(metrics, scraped) -> None:
    request = metrics.request_started("predict", "a")
    request.tokens(3)
    request.cancelled()
    request.tokens_wasted(4)
    request.tokens_wasted(1)
    assert scraped("requests_cancelled_total") == 1
    assert scraped("generation_tokens_total") == 3
    assert scraped("tokens_after_disconnect_total") == 5


def test_cached_tokens_are_counted_once_an_engine_has_told(metrics, scraped) -> None:
    first, second = (metrics.request_started("predict", name) for name in ("a", "b"))
    first.sent(5)
    assert scraped("cached_prompt_tokens_total") is None
    first.cached(0)
    assert scraped("cached_prompt_tokens_total") == 0
    second.cached(4)
    assert scraped("cached_prompt_tokens_total") == 4
    assert scraped("prompt_tokens_total") == 5


def test_in_flight_counts_every_request_until_its_end(metrics, scraped) -> None:
    requests = [metrics.request_started("predict", "a") for _ in range(3)]
    assert scraped("requests_in_flight") == 3
    requests[0].finished(FinishReason.STOP)
    requests[0].cancelled()
    requests[1].failed(DeadlineExceeded.code)
    requests[1].failed(DeadlineExceeded.code)
    assert scraped("requests_in_flight") == 1
    requests[2].cancelled()
    requests[2].finished(FinishReason.STOP)
    assert scraped("requests_in_flight") == 0
    assert scraped("requests_finished_total", reason="stop") == 1
    assert scraped("requests_failed_total", code="deadline_exceeded") == 1
    assert scraped("requests_cancelled_total") == 1


def test_gauges_are_read_when_scraped() -> None:
    waiting, up, restarts = [1, 2], [True], [0]
    metrics = Metrics(
        engine_up=lambda: up[0],
        load=lambda: Load(len(waiting), 7),
        restarts=lambda: restarts[0],
    )
    registry = CollectorRegistry()
    registry.register(metrics)
    assert registry.get_sample_value(f"{PREFIX}requests_waiting") == 2
    assert registry.get_sample_value(f"{PREFIX}requests_running") == 7
    assert registry.get_sample_value(f"{PREFIX}engine_up") == 1
    waiting.clear()
    up[0] = False
    restarts[0] = 1
    assert registry.get_sample_value(f"{PREFIX}requests_waiting") == 0
    assert registry.get_sample_value(f"{PREFIX}engine_up") == 0
    assert registry.get_sample_value(f"{PREFIX}engine_restarts_total") == 1


def test_what_is_deployed_is_a_series() -> None:
    labels = {"image": "my/image:1", "model": 'a "model"'}
    registry = CollectorRegistry()
    registry.register(Metrics(engine_up=lambda: True, build=labels))
    labels["version"] = __version__
    assert registry.get_sample_value(f"{PREFIX}build_info", labels) == 1


def test_repeated_starts_register_and_unregister(metrics) -> None:
    def names() -> list[str]:
        return [family.name for family in REGISTRY.collect()]

    before = names()
    for _ in range(2):
        with exposed(metrics, lambda: None):
            assert b"\ntrtllm_truss_engine_up 1.0\n" in generate_latest()  # as Truss asks
            assert "triton-metrics" in {thread.name for thread in threading.enumerate()}
        assert names() == before
        assert "triton-metrics" not in {thread.name for thread in threading.enumerate()}


def test_the_process_is_measured_where_truss_took_its_collector_away(metrics, tmp_path) -> None:
    REGISTRY.unregister(PROCESS_COLLECTOR)
    try:
        assert REGISTRY.get_sample_value("process_open_fds") is None
        with exposed(metrics, lambda: None), (tmp_path / "file").open("w"):
            opened = REGISTRY.get_sample_value("process_open_fds")
            assert opened == len([*Path("/proc/self/fd").iterdir()])
            assert REGISTRY.get_sample_value("process_start_time_seconds") < time.time()
            for name in ("resident_memory_bytes", "virtual_memory_bytes", "max_fds"):
                assert REGISTRY.get_sample_value(f"process_{name}") > 0, name
            assert REGISTRY.get_sample_value("process_cpu_seconds_total") > 0
    finally:
        REGISTRY.register(PROCESS_COLLECTOR)


def test_two_services_share_a_process(metrics) -> None:
    second = Metrics(engine_up=lambda: False)
    with exposed(metrics, lambda: None):
        with exposed(second, lambda: None):
            assert generate_latest().count(b"\ntrtllm_truss_engine_up ") == 2
        assert REGISTRY.get_sample_value(f"{PREFIX}engine_up") == 1
