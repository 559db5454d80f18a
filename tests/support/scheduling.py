"""The order in which workers get tests, and what becomes of those of a worker that dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class Scheduler(LoadScopeScheduling):
    """Assigns whole groups to workers, in the order of collection.

    `--dist loadgroup` would do; with pytest 9.2 it ignores groups (pytest-xdist's issue 1386).

    A test in which its worker dies fails, and is not run again; the others of the worker go to the
    rest. pytest-xdist 3.8 runs it again, and so kills one worker after another.

    Args:
        group_of: returns the group of a test by its id.
    """

    def __init__(self, config: pytest.Config, log: object, group_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._group_of = group_of

    def _split_scope(self, nodeid: str) -> str:
        return self._group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # else it is new, and still collects
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker; return the test in which it died, None if it had done all of its own."""
        workload = self.assigned_work.pop(node)
        pending = (
            (group, test)
            for group in workload
            for test, done in workload[group].items()
            if not done
        )
        died_in = next(pending, None)
        if died_in is None:
            return None
        group, test = died_in
        workload[group][test] = True
        for group, tests in workload.items():
            if not all(tests.values()):
                self.workqueue[group] = tests
                self.workqueue.move_to_end(group, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return test


class FailureNames:
    """Names each test that fails at once, for a run that may not come to its summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"failed: {report.nodeid}", red=True)


def not_run(config: pytest.Config, reporter: pytest.TerminalReporter) -> Iterator[str]:
    """Yield a line if tests that were collected have no outcome."""
    session = config.pluginmanager.getplugin("dsession")
    collected = set(getattr(getattr(session, "sched", None), "collection", None) or ())
    ended = {
        report.nodeid
        for reports in reporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    }
    if missing := collected - ended:
        yield f"{len(missing)} of {len(collected)} tests were not run, {min(missing)} among them"
