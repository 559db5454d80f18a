"""Plugin: repeat the harms of a test, and report the times of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import pytest

ROUND = "round"
"""Name of the property with the times of one round of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="harm each server so many times in each way",
    )


@pytest.fixture
def report_round(
    record_property: Callable[[str, object], None],
) -> Callable[[dict[str, float]], None]:
    """Report the times of one round of this test, by name."""
    return partial(record_property, ROUND)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Give each round the time limit of a test."""
    for item in items:
        if "report_round" in item.fixturenames:
            rounds, limit_s = item.config.getoption("--rounds"), item.config.getini("timeout")
            item.add_marker(pytest.mark.timeout(float(limit_s) * max(1, rounds)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for key in ("passed", "failed") for each in terminalreporter.getreports(key)]
    if lines := [*round_lines(reports)]:
        terminalreporter.section("rounds")
        for line in lines:
            terminalreporter.line(line)


def round_lines(reports: list[pytest.TestReport]) -> Iterator[str]:
    """Yield median and maximum of the times of each test with several rounds."""
    for report in reports:
        rounds = [times for name, times in report.user_properties if name == ROUND]
        if len(rounds) > 1:
            shown = (
                f"{key} {median(values):.2f} (max {max(values):.2f})"
                for key in rounds[0]
                if (values := [each[key] for each in rounds])
            )
            name = report.nodeid.rpartition("[")[2].rstrip("]")
            yield f"{name}, {len(rounds)} rounds: {', '.join(shown)}"
