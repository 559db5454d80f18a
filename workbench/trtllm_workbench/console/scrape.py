"""Parse the metrics that the console shows from a page of `/metrics`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trtllm_truss.triton.server.metrics import parse_metrics

_PREFIX = "trtllm_truss_"
_TRITON_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_QUANTILES = (50, 90, 99)

Buckets = Mapping[float, float]
"""Cumulative counts by upper bound in seconds, ascending."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Figures of one moment.

    Attributes:
        at_s: seconds of a monotonic clock.
        tokens: generated since the start of the process.
        first_token: histogram of seconds.
        gap: histogram of seconds between tokens.
        running: requests with the engine.
        waiting: requests in the queue.
        engine_up: whether the engine answers.
        restarts: of the engine.
        kv_share: of the KV cache, 0 to 1; None if unknown.
        kv_is_reserved: the share is reserved for running requests; else it is in use.
    """

    at_s: float
    tokens: float
    first_token: Buckets
    gap: Buckets
    running: int
    waiting: int
    engine_up: bool
    restarts: int
    kv_share: float | None
    kv_is_reserved: bool


def parse_scrape(page: str, at_s: float) -> Scrape:
    """Read a page in Prometheus's text format; missing figures, or all of no such page, are 0."""
    values: dict[str, float] = {}
    histograms: dict[str, dict[float, float]] = {}
    blocks: dict[str, float] = {}
    for name, labels, value in _samples(page):
        if name.startswith(_PREFIX) and "le" in labels:
            histograms.setdefault(name, {})[float(labels["le"])] = value
        elif name.startswith(_PREFIX):
            values[name.removeprefix(_PREFIX)] = value
        elif name == _TRITON_BLOCKS:
            kind = labels.get("kv_cache_block_type", "")
            blocks[kind] = blocks.get(kind, 0.0) + value
    kv_share, kv_is_reserved = _kv_share(blocks, values)
    return Scrape(
        at_s=at_s,
        tokens=values.get("generation_tokens_total", 0.0),
        first_token=histograms.get(f"{_PREFIX}time_to_first_token_seconds_bucket", {}),
        gap=histograms.get(f"{_PREFIX}inter_token_latency_seconds_bucket", {}),
        running=int(values.get("requests_running", 0)),
        waiting=int(values.get("requests_waiting", 0)),
        engine_up=values.get("engine_up") == 1,
        restarts=int(values.get("engine_restarts_total", 0)),
        kv_share=kv_share,
        kv_is_reserved=kv_is_reserved,
    )


def _samples(page: str) -> list[tuple[str, Mapping[str, str], float]]:
    try:
        families = parse_metrics(page)
    except ValueError:
        return []
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if math.isfinite(sample.value)
    ]


def percentiles_ms(before: Buckets, after: Buckets) -> dict[str, float] | None:
    """Estimate percentiles of the values observed between two scrapes.

    Interpolates within a bucket, as Prometheus does.

    Returns:
        Milliseconds by `p50`, `p90` and `p99`; None without an observation.
    """
    bounds = list(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    return {f"p{rank}": round(1000 * _quantile(bounds, counts, rank / 100), 1)
            for rank in _QUANTILES}  # fmt: skip


def _quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float:
    """Return the value below which a share of the observations lies; cumulative counts."""
    wanted = share * counts[-1]
    edges = pairwise(zip([0.0, *bounds], [0.0, *counts], strict=True))
    for (low, below), (high, upto) in edges:
        if upto >= wanted and upto > below:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (upto - below)
    return bounds[-1]


def _kv_share(
    blocks: Mapping[str, float], values: Mapping[str, float]
) -> tuple[float | None, bool]:
    """Return the engine's own figure, or else the share that admission has reserved."""
    if blocks.get("max"):
        return min(1.0, blocks.get("used", 0.0) / blocks["max"]), False
    if capacity := values.get("kv_cache_tokens"):
        return min(1.0, values.get("kv_cache_reserved_tokens", 0.0) / capacity), True
    return None, False
