"""Plugin: order and group the tests, so that one worker runs all tests of a shared server."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ELSEWHERE, TESTS
from tests.support.scheduling import FailureNames, Scheduler, not_run

SERVER_FOLDERS = ("end_to_end", "backends/triton_native")
SERVER_FIXTURES = frozenset(
    {"make_triton", "model_folder", "remote_api", "smollm2_checkpoint", "triton", "warm_triton"}
)
LIGHT_SERVER_FIXTURES = frozenset({"evil", "fake_triton", "hub", "s3"})
"""Servers that start in milliseconds; the tests of a file stay together."""
SHARED_FIXTURES = (
    *("context", "checkpoint", "laid_out", "model_folder", "engine", "native", "remote_api"),
    *("server", "smollm2_checkpoint", "page", "gpu_server", "slow_thinker", "thinker", "triton"),
    *("restarting", "tool_server", "impatient", "slow", "warm_triton", "wheel"),
)
"""Shared servers and models; one worker runs all tests of each."""

LONG_GROUPS = ("end_to_end/server/cpu", "engines/model_folder")
"""Groups that would end after all others if they began later."""

MOST_WORKERS = 4


def pytest_configure(config: pytest.Config) -> None:
    """Have each worker collect from another folder on.

    It then reads most files with the assertions that another worker has rewritten.
    """
    folders = [Path(config.rootpath, each) for each in config.args]
    if hasattr(config, "workerinput") and folders == [TESTS]:
        config.args = in_turns(config.workerinput)


def in_turns(worker: dict[str, Any]) -> list[str]:
    """Return the folders of the tests, for each worker from another one on."""
    names = sorted({each.name for each in TESTS.iterdir() if each.is_dir()} - ELSEWHERE)
    folders = [str(TESTS / name) for name in names]
    number = int(worker["workerid"].removeprefix("gw"))
    first = number * len(folders) // worker["workercount"]
    return folders[first:] + folders[:first]


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    if not hasattr(session.config, "workerinput"):
        plugins.register(FailureNames(plugins.getplugin("terminalreporter")))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in not_run(config, terminalreporter):
        terminalreporter.section("not run", red=True)
        terminalreporter.line(line)


def groups_file() -> Path:
    return Path(os.environ["TMPDIR"]) / "groups.json"


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark the server tests, run long groups and them first, and group all tests for the workers.

    Tests with a shared server are one group, each other server test is a separate one, and the
    remaining tests are grouped by file.
    """
    groups = {}
    for item in items:
        folder, fixtures = item.path.parent.relative_to(TESTS), set(item.fixturenames)
        is_light = fixtures & LIGHT_SERVER_FIXTURES
        if folder.as_posix() in SERVER_FOLDERS or fixtures & SERVER_FIXTURES or is_light:
            item.add_marker("server")
        shared = next((name for name in SHARED_FIXTURES if name in fixtures), None)
        if shared is not None:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            kind = parameters.get(shared, "")
            parts = (folder.parts[0], shared, kind if isinstance(kind, str) else "")
            groups[item.nodeid] = "/".join(filter(None, parts))
        elif item.get_closest_marker("server") and not is_light:
            groups[item.nodeid] = item.nodeid
        else:
            groups[item.nodeid] = str(item.path)
    items.sort(
        key=lambda item: (
            groups[item.nodeid] not in LONG_GROUPS,
            item.get_closest_marker("server") is None,
            item.path,
        )
    )
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        groups_file().write_text(json.dumps(groups))


@lru_cache
def groups() -> dict[str, str]:
    """Return the group of each test, which a worker has written."""
    read: dict[str, str] = json.loads(groups_file().read_text())
    groups_file().unlink()
    return read


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduler:
    return Scheduler(config, log, lambda nodeid: groups()[nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers more than cores, because tests wait for servers; without them, one."""
    more = 1 if config.option.markexpr == "not server" else 2
    return min(len(os.sched_getaffinity(0)) + more, MOST_WORKERS)
