"""Measure paths alternately and aggregate their samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.load.process import run_load
from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.servers.target import Target
from benchmarks.servers.usage import PeakMemory, total, usage_by_role

_MIN_STREAMS_FOR_RSS = 32
"""With fewer, a stream's memory vanishes in the noise of the server's."""

Sample = dict[str, float]
"""Figures of one measurement by name; names end in their units."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over all rounds."""

    median: float
    low: float
    high: float

    @property
    def as_ratio(self) -> str:
        return self.shown(".2f", " ×")

    def shown(self, form: str, unit: str) -> str:
        """Format the median with its unit, then the range unless it is one figure."""
        low, high = f"{self.low:{form}}", f"{self.high:{form}}"
        return f"{self.median:{form}}{unit}" + (f" ({low} to {high})" if low != high else "")


def in_turns(paths: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Measure every path once per round, so that a disturbance affects all paths."""
    samples: dict[str, list[Sample]] = {name: [] for name in paths}
    for _ in range(rounds):
        for name, measure in paths.items():
            samples[name].append(measure())
    return samples


def spreads(samples: list[Sample]) -> dict[str, Spread]:
    """Return median, minimum and maximum of every figure common to all samples."""
    names = [name for name in samples[0] if all(name in sample for sample in samples)]
    return {
        name: Spread(statistics.median(values), min(values), max(values))
        for name in names
        if (values := [sample[name] for sample in samples])
    }


def paired_ratios(ours: list[Sample], other: list[Sample]) -> dict[str, Spread]:
    """Return the ratio of every figure within a turn, over all turns; zeros are omitted."""
    return spreads(
        [
            {name: mine[name] / theirs[name] for name in mine if theirs.get(name)}
            for mine, theirs in zip(ours, other, strict=True)
        ]
    )


def measure(target: Target, spec: LoadSpec, idle_rss_bytes: int = 0) -> Sample:
    """Put a load on a server and return the figures of client and server.

    Args:
        target: the server.
        spec: the load.
        idle_rss_bytes: the server's memory before the first load; the rest counts as the streams'.

    Raises:
        RuntimeError: the server exited during the load.
    """
    before = usage_by_role(target.pid)
    with PeakMemory(target.pid) as memory:
        result = run_load(spec)
    after = usage_by_role(target.pid)
    if before.keys() - after.keys():
        raise RuntimeError("the server exited during the measurement")
    tokens = max(1, result.tokens)
    sample = figures(result)
    server_cpu_s = total(after).cpu_s - total(before).cpu_s
    sample["request_cpu_us"] = 1e6 * server_cpu_s / max(1.0, sample["requests"])
    sample["client_cpu_us"] = 1e6 * result.cpu_s / tokens
    sample["server_cpu_us"] = 1e6 * server_cpu_s / tokens
    for role in before.keys() & after.keys():
        sample[f"{role}_cpu_us"] = 1e6 * (after[role].cpu_s - before[role].cpu_s) / tokens
    sample["rss_mib"] = memory.rss_bytes / 2**20
    if spec.streams >= _MIN_STREAMS_FOR_RSS:
        sample["stream_rss_kib"] = (memory.rss_bytes - idle_rss_bytes) / 2**10 / spec.streams
    return sample


def measure_alone(engine: Callable[[int, int], LoadResult], streams: int, requests: int) -> Sample:
    """Put a load on an engine without a server."""
    return figures(engine(streams, requests))


def figures(result: LoadResult) -> Sample:
    """Return the figures of a client."""
    sample: Sample = {
        "tok_s": result.tok_s,
        "requests": float(sum(result.outcomes.values())),
        "request_s": sum(result.outcomes.values()) / result.elapsed_s if result.elapsed_s else 0.0,
        "failed": float(result.failed),
        "pace_tok_s": result.pace_tok_s,
        "tokens_per_arrival": result.tokens_per_arrival,
    }
    for figure in ("ttft_ms", "gap_ms", "connect_ms"):
        for quantile, value in getattr(result, figure).items():
            sample[f"{figure.removesuffix('_ms')}_{quantile}_ms"] = value
    return sample
