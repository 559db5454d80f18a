"""Plugin: a folder of the session for temporary files; a session that leaves anything fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.left_behind import LeftBehind
from tests.support.warm_python import end_zygote

MEMORY = "/dev/shm"
LEAST_MEMORY_BYTES = 1 << 30
RUNNING: set[str] = set()
LEFT_BEHIND = pytest.StashKey[LeftBehind]()
LEFT = pytest.StashKey[list[str]]()


def memory_folder() -> str | None:
    """Return a folder in memory for many small files; None without a large one.

    Each server lays out hundreds of files, and ext4 slows down by ten times where as many were
    deleted a moment ago.
    """
    try:
        status = os.statvfs(MEMORY)
    except OSError:
        return None
    is_large = status.f_bavail * status.f_frsize > LEAST_MEMORY_BYTES
    return MEMORY if is_large and not status.f_flag & os.ST_NOEXEC else None


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder, which the workers share."""
    if not hasattr(config, "workerinput"):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()  # `tmp_path` is not moved
        os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="truss-tests-", dir=memory_folder())
        tempfile.tempdir = None
        os.environ["HF_HOME"] = f"{os.environ['TMPDIR']}-hub"  # before huggingface_hub reads it
        for tool in ("PIP", "UV"):  # whose downloads are kept from run to run
            named = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
            os.environ.setdefault(f"{tool}_CACHE_DIR", str(named / tool.lower()))
        os.environ["XDG_CACHE_HOME"] = f"{os.environ['TMPDIR']}-cache"


@pytest.hookimpl(tryfirst=True)  # before workers are started
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        base = session.config._tmp_path_factory.getbasetemp()
        folders = [Path(os.environ["TMPDIR"]), base]
        session.config.stash[LEFT_BEHIND] = LeftBehind(folders, RUNNING)


def pytest_runtest_logstart(nodeid: str) -> None:
    RUNNING.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    RUNNING.discard(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail the session if it left anything on the machine."""
    yield  # shared servers and workers have ended
    end_zygote()
    if left_behind := session.config.stash.get(LEFT_BEHIND, None):
        if left := left_behind.end():
            session.config.stash[LEFT] = left
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        for name in ("TMPDIR", "HF_HOME", "XDG_CACHE_HOME"):
            shutil.rmtree(os.environ[name], ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left := config.stash.get(LEFT, None):
        terminalreporter.section("left behind", red=True)
        for line in left:
            terminalreporter.line(line)
