"""Run all scenarios and write their tables and plots into docs/scale.md.

    python -m benchmarks.fleet --docs docs

Without --docs it prints the tables. The same seed gives the same results.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tools.docs.tables import fill, table

from benchmarks.fleet import scenarios
from benchmarks.fleet.fleet import Result, Scenario, run
from benchmarks.fleet.router import ROUTERS
from benchmarks.report import draw
from benchmarks.result import Chart

_POINTS = 60
Results = Mapping[str, Mapping[str, Result]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--docs", type=Path, help="the folder of scale.md and plots/")
    options = parser.parse_args()
    results = run_all(
        {
            "fleet-sizes": scenarios.sizes((1, 10, 100, 1000), 1500),
            "fleet-step": scenarios.steps(5, 1500),
            "fleet-zone": scenarios.zones(30, 900),
            "fleet-day": scenarios.days(4, scenarios.DAY_S),
        }
    )
    tables = tables_of(results)
    if options.docs is None:
        for name, text in tables.items():
            print(f"{name}\n\n{text}")
        return
    page = options.docs / "scale.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for chart in charts_of(results):
        draw(chart, options.docs / "plots" / f"{chart.name}.png")


def run_all(groups: Mapping[str, Mapping[str, Scenario]]) -> Results:
    """Run the scenarios of all groups on all cores, long ones first."""
    with ProcessPoolExecutor() as pool:
        ordered = sorted(
            ((group, name) for group in groups for name in groups[group]),
            key=lambda names: -groups[names[0]][names[1]].seconds,
        )
        runs = {names: pool.submit(run, groups[names[0]][names[1]]) for names in ordered}
        return {
            group: {name: runs[group, name].result() for name in groups[group]} for group in groups
        }


def tables_of(results: Results) -> dict[str, str]:
    """Return the tables of docs/scale.md by their names."""
    sizes, steps, zones, days = (results[name] for name in results)
    counts = list(dict.fromkeys(name.partition(" ")[0] for name in sizes))
    fixed = days["fixed"].replica_seconds
    return {
        "fleet-sizes": table(
            ["replicas", *ROUTERS],
            [
                [f"{int(count):,}", *(_waits(sizes.get(f"{count} {router}")) for router in ROUTERS)]
                for count in counts
            ],
        ),
        "fleet-step": table(
            ["metric, growth per minute, cold start", "refused", "refusals", "most replicas"],
            [
                [name, _percent(result.share("refused")), _last_refusal(result), _most(result)]
                for name, result in steps.items()
            ],
        ),
        "fleet-zone": table(
            ["load before", "requests cut", "refused", "99th percentile of the wait"],
            [
                [
                    name,
                    _percent(result.share("lost")),
                    _percent(result.share("refused")),
                    f"{result.wait_s(0.99):.1f} s",
                ]
                for name, result in zones.items()
            ],
        ),
        "fleet-day": table(
            ["replicas", "replica hours", "of the fixed fleet's", "slots in use", "refused"],
            [
                [
                    name,
                    f"{result.replica_seconds / 3600:.1f}",
                    _percent(result.replica_seconds / fixed, 0),
                    _percent(result.slot_share, 0),
                    _percent(result.share("refused"), 2),
                ]
                for name, result in days.items()
            ],
        ),
    }


def charts_of(results: Results) -> list[Chart]:
    _, steps, zones, days = (results[name] for name in results)
    minutes = "minutes"
    return [
        Chart(
            "fleet-step",
            "Replicas that are ready, after ten times the load",
            minutes,
            "replicas",
            {
                name: _curve(result, "ready", scenarios.STEP_S)
                for name, result in steps.items()
                if "120" in name or "600" in name
            },
            log_x=False,
        ),
        Chart(
            "fleet-zone",
            "Share of requests refused, one zone of three lost",
            minutes,
            "share",
            {
                name: _curve(result, "refused", scenarios.ZONE_LOST_S)
                for name, result in zones.items()
            },
            log_x=False,
        ),
        Chart(
            "fleet-day",
            "Replicas over a day",
            "hours",
            "replicas",
            {
                name: [(at / 60, value) for at, value in _curve(result, "paid", 0)]
                for name, result in days.items()
            },
            log_x=False,
        ),
    ]


def _curve(result: Result, key: str, from_s: float) -> list[tuple[float, float]]:
    """Return minutes after `from_s` and a sample's value; for refusals, their share of arrivals."""
    samples = [sample for sample in result.samples if sample.at_s >= from_s - 60]
    thinned = samples[:: -(-len(samples) // _POINTS)]
    return [
        (
            (sample.at_s - from_s) / 60,
            sample.refused / max(1, sample.arrived) if key == "refused" else getattr(sample, key),
        )
        for sample in thinned
    ]


def _waits(result: Result | None) -> str:
    if result is None:
        return ""
    refused = result.share("refused")
    text = f"{result.wait_s(0.99):.1f} s"
    return text if refused < 0.0005 else f"{text}; {_percent(refused)} refused"


def _last_refusal(result: Result) -> str:
    """Return the minute after the step in which at least 1 % was last refused."""
    times = [one.at_s for one in result.samples if one.refused > 0.01 * max(1, one.arrived)]
    if times and times[-1] == result.samples[-1].at_s:
        return "not over after 20 minutes"
    return f"over after {times[-1] - scenarios.STEP_S:.0f} s" if times else ""


def _most(result: Result) -> str:
    return str(max(sample.paid for sample in result.samples))


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


if __name__ == "__main__":
    main()
