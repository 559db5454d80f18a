"""Figures out of a page of metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from trtllm_truss.observability.metrics import Load, Metrics
from trtllm_truss.requests import FinishReason
from trtllm_workbench.console.pulse import parse_scrape, percentiles_ms

INF = float("inf")
BLOCKS = "trtllm_truss_kv_cache_blocks"
TRITON = """\
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 30
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 90
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 120
nv_inference_count{model="trtllm_truss_generation_tokens_total 9"} 1
"""


def real_page(kv_cache: tuple[int, int] = (0, 0)) -> str:
    """Return the page of a service that has answered one request with three tokens."""
    times = iter([0.0, 0.03125, 0.046875, 0.0625, 0.0625])
    metrics = Metrics(
        engine_up=lambda: True,
        load=lambda: Load(3, 2, reserved_tokens=kv_cache[0], limit_tokens=kv_cache[1]),
        restarts=lambda: 1,
        clock=lambda: next(times),
    )
    request = metrics.request_started("predict", "id")
    for _ in range(3):
        request.tokens(1)
    request.finished(FinishReason.STOP)
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def test_a_page_of_the_real_collector() -> None:
    scrape = parse_scrape(real_page(), 5.0)
    assert (scrape.at_s, scrape.tokens, scrape.running, scrape.waiting) == (5.0, 3, 2, 3)
    assert scrape.engine_up
    assert scrape.restarts == 1
    assert scrape.kv_share is None
    assert scrape.first_token[INF] == 1
    assert scrape.gap[INF] == 2
    assert percentiles_ms({}, scrape.first_token) == {"p50": 35.0, "p90": 39.0, "p99": 39.9}


def test_use_of_the_kv_cache() -> None:
    reserved = parse_scrape(real_page((4096, 16384)), 0)
    assert (reserved.kv_share, reserved.kv_is_reserved) == (0.25, True)
    alone = parse_scrape(real_page((20000, 16384)), 0)  # a request that is too large runs alone
    assert alone.kv_share == 1
    of_checkpoint = TRITON.replace("nv_trt_llm_kv_cache_block_metrics", BLOCKS)
    for page in (TRITON, of_checkpoint):  # the engine's own figure wins
        used = parse_scrape(real_page((4096, 16384)) + page, 0)
        assert (used.kv_share, used.kv_is_reserved) == (0.25, False)
        assert used.tokens == 3


@pytest.mark.parametrize(
    "page",
    [
        "",
        "\n",
        "trtllm_truss_engine_up",
        "<html>",
        "# HELP x y\n",
        "trtllm_truss_engine_up NaN",
        "trtllm_truss_engine_up x",
    ],
)
def test_a_page_without_figures(page: str) -> None:
    scrape = parse_scrape(page, 0)
    assert (scrape.tokens, scrape.engine_up, scrape.kv_share) == (0, False, None)
    assert percentiles_ms(scrape.gap, scrape.gap) is None


def test_percentiles_are_those_of_the_difference() -> None:
    before = {0.1: 100.0, 1.0: 100.0, INF: 100.0}
    after = {0.1: 100.0, 1.0: 190.0, INF: 200.0}
    assert percentiles_ms(before, after) == {"p50": 600.0, "p90": 1000.0, "p99": 1000.0}
    assert percentiles_ms(after, after) is None
