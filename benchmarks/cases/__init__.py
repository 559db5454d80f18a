"""The cases, each a module with `run(options) -> CaseResult`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from benchmarks.options import Options
from benchmarks.result import CaseResult

DEFAULT = ("zero-cost", "cpu-engine", "host-floor", "paced")
MEASURED = (
    *DEFAULT,
    "long-answers",
    "overload",
    "sent-ahead",
    "slow-readers",
    "endurance",
    "hostile",
    "new-guides",
    "leavers",
    "download",
    "cold-start",
    "weights",
    "llm-api",
    "console",
    "tracing",
    "scrapes",
    "dynamo",
    "peers",
)
ALL = (*MEASURED, "chaos", "soak")


def case(name: str) -> Callable[[Options], CaseResult]:
    """Return the `run` function of a case."""
    module = import_module(f"benchmarks.cases.{name.replace('-', '_')}")
    run: Callable[[Options], CaseResult] = module.run
    return run
