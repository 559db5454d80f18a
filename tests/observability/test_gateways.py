"""The gauges and the page of endpoint pickers, read by their rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlencode

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import Message
from tests.support.endpoint_picker import adapters, latest

from trtllm_truss.observability.exposition import MetricsPage
from trtllm_truss.observability.metrics import Load, Metrics
from trtllm_truss.requests import FinishReason


def metrics_of(load: Load, names: Sequence[str] = ()) -> tuple[Metrics, CollectorRegistry]:
    metrics = Metrics(engine_up=lambda: True, load=lambda: load, adapters=names)
    registry = CollectorRegistry()
    registry.register(metrics)
    return metrics, registry


def page_of(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


RESERVING = Load(3, 2, 8, 512, 1024, 1024, 32)
OVERCOMMITTING = RESERVING._replace(limit_tokens=0)
UNKNOWN = Load(3, 2, 8, 512, block_tokens=64)


@pytest.mark.parametrize(
    ("load", "held", "utilization", "blocks"),
    [
        (RESERVING, 100, 0.5, 32),
        (RESERVING._replace(reserved_tokens=4096), 0, 1.0, 32),
        (OVERCOMMITTING, 128, 0.125, 32),
        (OVERCOMMITTING, 4000, 1.0, 32),
        (UNKNOWN, 100, 0.25, 0),
        (Load(), 0, 0.0, 0),
    ],
)
def test_the_five_gauges(load: Load, held: int, utilization: float, blocks: int) -> None:
    metrics, registry = metrics_of(load)
    request = metrics.request_started("predict", "id")
    request.queued(0)
    request.sent(held)
    page = page_of(registry)
    assert latest(page, "trtllm_num_requests_waiting") == load.waiting
    assert latest(page, "trtllm_num_requests_running") == load.running
    assert latest(page, "trtllm_kv_cache_utilization") == utilization
    assert latest(page, "trtllm_kv_cache_tokens_per_block") == load.block_tokens
    assert latest(page, "trtllm_kv_cache_max_blocks") == blocks
    assert "vllm:lora_requests_info" not in page


def test_held_tokens_grow_with_the_answer_and_go_with_it() -> None:
    metrics, registry = metrics_of(OVERCOMMITTING)

    def utilization() -> float:
        return latest(page_of(registry), "trtllm_kv_cache_utilization")

    for end in ("finished", "failed", "cancelled"):
        request = metrics.request_started("predict", "id")
        request.queued(0)
        request.sent(256)
        assert utilization() == 0.25
        request.tokens(128)
        assert utilization() == 0.375
        given = {"finished": [FinishReason.STOP], "failed": ["queue_full"]}
        getattr(request, end)(*given.get(end, []))
        assert utilization() == 0


def test_adapters_are_listed_while_requests_wait_or_run() -> None:
    metrics, registry = metrics_of(RESERVING, ["a", "b", "c"])
    assert adapters(page_of(registry)) == (set(), set(), 3)
    requests = [metrics.request_started("predict", "id") for _ in range(4)]
    for request, adapter in zip(requests, (1, 1, 3, None), strict=True):
        request.waits(adapter)
    assert adapters(page_of(registry)) == (set(), {"a", "c"}, 3)
    requests[0].queued(0)
    requests[3].queued(0)
    assert adapters(page_of(registry)) == ({"a"}, {"a", "c"}, 3)
    requests[1].failed("queue_full")
    requests[2].queued(0)
    assert adapters(page_of(registry)) == ({"a", "c"}, set(), 3)
    requests[0].finished(FinishReason.STOP)
    requests[2].cancelled()
    assert adapters(page_of(registry)) == (set(), set(), 3)


def test_numbers_of_adapters_without_names_are_forgotten() -> None:
    metrics, _ = metrics_of(RESERVING)
    for number in range(1, 100):
        request = metrics.request_started("predict", "id")
        request.waits(number)
        if number % 2:
            request.queued(0)
        request.cancelled()
    assert not metrics._counters.waiting_adapters
    assert not metrics._counters.running_adapters


async def scrape(page: MetricsPage, query: str = "", **headers: str) -> tuple[int, str]:
    """Return the status and the body of a scrape."""
    scope = {
        **{"type": "http", "method": "GET", "path": "/metrics", "query_string": query.encode()},
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await page(scope, asyncio.Queue[Message]().get, send)
    start, body = sent
    found = dict(start["headers"])
    assert found[b"content-type"].startswith(b"text/plain; version=0.0.4")
    assert found.keys() == {b"content-type", b"content-length"}
    assert int(found[b"content-length"]) == len(body["body"])
    return start["status"], body["body"].decode()


OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
"""As Prometheus sends it."""


async def test_every_scraper_gets_the_text_format_uncompressed() -> None:
    _, registry = metrics_of(RESERVING)
    go = {"accept-encoding": "gzip", "user-agent": "Go-http-client/1.1"}
    for headers in (go, {"accept": "text/plain"}, {"accept": OPENMETRICS}, {"accept": "x/y"}):
        status, page = await scrape(MetricsPage(registry), **headers)
        assert status == 200
        assert page == page_of(registry)


async def test_a_page_serves_scrapes_for_ten_times_its_duration() -> None:
    _, registry = metrics_of(RESERVING)
    now_s, made = [0.0], []

    class Slow(Collector):
        def collect(self) -> list[Metric]:
            made.append(now_s[0])
            now_s[0] += 0.25
            return [GaugeMetricFamily("slow", "Slow.", value=len(made))]

        def describe(self) -> list[Metric]:
            return []

    registry.register(Slow())
    page = MetricsPage(registry, lambda: now_s[0])
    for query in ("", "name[]=slow", ""):
        assert "slow 1.0\n" in (await scrape(page, query))[1]
    now_s[0] += 2.4
    assert "slow 1.0\n" in (await scrape(page, accept=OPENMETRICS))[1]
    now_s[0] += 0.2
    assert "slow 2.0\n" in (await scrape(page))[1]
    assert len(made) == 2


@pytest.mark.parametrize(
    ("names", "families"),
    [
        (["trtllm_num_requests_waiting"], {"trtllm_num_requests_waiting"}),
        (
            ["trtllm_truss_generation_tokens_total", "trtllm_truss_queue_time_seconds_bucket"],
            {"trtllm_truss_generation_tokens", "trtllm_truss_queue_time_seconds"},
        ),
        (["trtllm_truss_queue_time_seconds"] * 64, {"trtllm_truss_queue_time_seconds"}),
        (["unknown"], set()),
        ([""], set()),
    ],
)
async def test_families_by_name(names: list[str], families: set[str]) -> None:
    _, registry = metrics_of(RESERVING)
    query = urlencode([("name[]", name) for name in names])
    status, page = await scrape(MetricsPage(registry), query)
    assert status == 200
    found = {family.name for family in text_string_to_metric_families(page)}
    assert found == families


@pytest.mark.parametrize(
    ("query", "words"),
    [("&".join(["name[]=up"] * 65), "more than 64 names"), ("format=x", "format is not")],
)
async def test_other_queries_are_refused(query: str, words: str) -> None:
    _, registry = metrics_of(RESERVING)
    status, text = await scrape(MetricsPage(registry), query)
    assert status == 400
    assert words in text
