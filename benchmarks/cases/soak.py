"""Check that usage stays flat over half an hour of all protocols, leavers and hostile bodies."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping

from benchmarks.chaos.clients import CUT, FAULTS, WHOLE, Client, Tally, run_clients
from benchmarks.chaos.inspected import serve_and_inspect
from benchmarks.chaos.soak_clients import CALLS, LIMIT_S, Attacker, Guest, Leaver
from benchmarks.chaos.trend import trend_of
from benchmarks.hostile.corpus import CORPUS
from benchmarks.hostile.warm_up import warm_up
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE
from benchmarks.result import CaseResult, Column
from benchmarks.servers.configuration import write_config
from benchmarks.servers.usage import Usage, usage_by_process

_MINUTES = 30.0
_SETTLED_S = 180.0
_SETTLED_SHARE = 0.3
_EVERY_S = 10.0
_SAMPLES = 12
"""Minimum number; in a short run more often."""

_LEAVERS = 2
_MORE_MIB, _MORE_THREADS, _MORE_FILES = 20.0, 4.0, 4.0
_MIB = 1 << 20
_COLUMNS = [
    Column("process", "process"),
    Column("figure", "figure"),
    Column("first", "at the start", 1),
    Column("low", "least", 1),
    Column("high", "most", 1),
    Column("mean", "mean", 1),
    Column("growth", "growth", 1),
    Column("verdict", "verdict"),
]

Samples = dict[tuple[str, int], list[tuple[float, Usage]]]


def run(options: Options) -> CaseResult:
    """Run the soak; violated expectations are the result's faults."""
    minutes = options.minutes or _MINUTES
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    settled_s = min(_SETTLED_S, _SETTLED_SHARE * minutes * 60)
    text = (
        f"{len(CALLS)} clients of all protocols, {_LEAVERS} that leave at a random byte and one "
        f"that sends hostile bodies ask `examples/smollm2-135m-cpu` for {minutes:g} minutes; seed "
        f"{seed}. Memory, threads and open files of each process of the server are sampled every "
        f"{_EVERY_S:g} s. Least, most, mean and growth are those after {settled_s:g} s; growth is "
        "that of a straight line through the samples (least squares) from its begin to its end. "
        f"A figure is held if it grows by less than 5 % of its mean, or by less than "
        f"{_MORE_MIB:g} MiB, {_MORE_THREADS:g} threads or {_MORE_FILES:g} files."
    )
    result = CaseResult("soak", "Soak: all protocols, leavers and hostile bodies", text, _COLUMNS)
    result.begin()
    print(f"  seed {seed}", flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    config = write_config(options.work / "soak.yaml", EXAMPLE)
    with serve_and_inspect(result, config, options.work / "soak.log") as truss:
        warm_up(truss, guides=True)
        samples, tally = asyncio.run(_soak(truss.pid, truss.port, seed, minutes * 60))
        warm_up(truss, guides=True)
    _report_usage(result, samples, settled_s)
    _report_ends(result, tally)
    return result


async def _soak(root: int, port: int, seed: int, duration_s: float) -> tuple[Samples, Tally]:
    url = f"http://127.0.0.1:{port}"
    bodies = [body for body in CORPUS if not body.needs_tools]
    chances = (random.Random(f"{seed} {number}") for number in range(len(CALLS) + _LEAVERS + 1))
    clients: list[Client] = [Guest(kind, url, next(chances)) for kind in CALLS]
    clients += [Leaver(url, next(chances), bodies) for _ in range(_LEAVERS)]
    clients.append(Attacker(url, next(chances), bodies))
    samples: Samples = defaultdict(list)
    tally = Tally()

    async def sample() -> None:
        begun = time.monotonic()
        every_s = min(_EVERY_S, duration_s / _SAMPLES)
        while (now := time.monotonic() - begun) < duration_s:
            for process, usage in usage_by_process(root).items():
                samples[process].append((now, usage))
            await asyncio.sleep(every_s)

    await run_clients(clients, tally, sample)
    return samples, tally


def _report_usage(result: CaseResult, samples: Samples, settled_s: float) -> None:
    """Add a row for each figure of each process that survived to the end."""
    end = max(taken[-1][0] for taken in samples.values())
    for (role, pid), taken in samples.items():
        late = [(time_s, usage) for time_s, usage in taken if time_s >= settled_s]
        if taken[-1][0] < end or not late:
            result.find(f"{role} {pid} ended after {taken[-1][0]:.0f} s.")
            continue
        if taken[0][0] > settled_s:
            result.find(f"{role} {pid} began after {taken[0][0]:.0f} s.")
        for figure, (_, least) in _figures(taken[0][1]).items():
            trend = trend_of([(time_s, _figures(usage)[figure][0]) for time_s, usage in late])
            is_flat = trend.is_flat(least)
            result.add(
                process=f"{role} {pid}",
                figure=figure,
                first=_figures(taken[0][1])[figure][0],
                low=trend.low,
                high=trend.high,
                mean=trend.mean,
                growth=trend.growth,
                verdict="held" if is_flat else "grows",
            )
            if not is_flat:
                result.fault(f"{role} {pid}: {figure} grows by {trend.growth:.1f}.")


def _figures(usage: Usage) -> Mapping[str, tuple[float, float]]:
    """Return each figure, and the growth that counts as noise."""
    return {
        "RSS MiB": (usage.rss_bytes / _MIB, _MORE_MIB),
        "threads": (float(usage.threads), _MORE_THREADS),
        "open files": (float(usage.fds), _MORE_FILES),
    }


def _report_ends(result: CaseResult, tally: Tally) -> None:
    for kind in sorted({kind for kind, _ in tally.ends}):
        ends = {end: count for (each, end), count in tally.ends.items() if each == kind}
        shown = ", ".join(f"{count} × {end}" for end, count in sorted(ends.items()))
        result.find(f"{kind}: {shown}.")
        if kind in CALLS and not ends.get(WHOLE):
            result.fault(f"no answer to {kind} was whole.")
    result.find(f"The longest request took {tally.longest_s:.1f} s (hung: {LIMIT_S:g} s).")
    for fault in (*FAULTS, CUT):
        if count := tally.count(fault):
            result.fault(f"{count} requests ended {fault}.")
    for example in tally.examples:
        result.find(example)
