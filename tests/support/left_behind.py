"""Detect leftovers of a test session, with the tests that ran when they appeared.

Other suites may run at the same time. A process is ours if it descends from this one or has its
`TMPDIR` below our folders. A file is ours in the session's folder; elsewhere, if its name contains
the id of one of our processes, or if one of them maps it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from tests.support.truss_process import descendants
from tests.support.waiting import settles

from trtllm_truss.processes.process_guard import _env_makers

_TICK_S = 0.1
_PATIENCE_S = 15.0  # guards may still be cleaning up
_PATTERNS = ("python_env_*", "trtllm*", "truss-*", "ompi.*", "prte.*", "pmix*")


class LeftBehind:
    """Watches for new files and processes from a thread."""

    def __init__(self, folders: Collection[Path], running: Collection[str]) -> None:
        """Record existing files.

        Args:
            folders: the session's folders; the first one must be empty in the end.
            running: names of the currently running tests.
        """
        self._own, *_ = resolved = [folder.resolve() for folder in folders]
        self._prefixes = tuple(map(str, resolved))
        self._running = running
        self._known: dict[Path, str | None] = dict.fromkeys(self._elsewhere())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> list[str]:
        """Remove leftovers and return their descriptions."""
        self._ended.set()
        self._thread.join()
        settles(lambda: not self._left(), _PATIENCE_S)
        left = self._left()
        for thing in left:
            _remove(thing)
        return [f"{thing}: {origin}" for thing, origin in left.items()]

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_S):
            with contextlib.suppress(OSError, LookupError):  # files may disappear meanwhile
                self._look()

    def _look(self) -> None:
        appeared = {*self._elsewhere(), *self._own.iterdir()} - self._known.keys()
        if appeared:
            origin = f"came up while {', '.join(self._running) or 'no test'} ran"
            ours = cache(self._processes)
            self._known |= {path: origin if self._is_of(path, ours) else None for path in appeared}

    def _left(self) -> dict[Path | int, str]:
        self._look()
        paths = {path: tests for path, tests in self._known.items() if tests and path.exists()}
        processes = {pid: _describe(pid) for pid in self._processes()}
        return {**paths, **processes}

    def _elsewhere(self) -> set[Path]:
        found = {path for pattern in _PATTERNS for path in Path("/tmp").glob(pattern)}
        return {*found, *Path("/dev/shm").iterdir()} - {self._own}

    def _is_of(self, path: Path, our_processes: Callable[[], set[int]]) -> bool:
        if path.parent == self._own or any(map(self._has, re.findall(r"\d{2,}", path.name))):
            return True
        ours = our_processes()  # reads hundreds of files
        with contextlib.suppress(OSError):  # it has disappeared
            names = [path.name, *(each.name for each in path.rglob("*"))]
            numbers = {int(number) for name in names for number in re.findall(r"\d{2,}", name)}
            if numbers & {*ours, os.getpid()}:
                return True
            if path.name.startswith("python_env_"):
                made_s = path.lstat().st_ctime
                makers = {pid for pid, (begin_s, end_s) in _env_makers().items()
                          if begin_s < made_s < end_s}  # fmt: skip
                return bool(makers) and makers <= ours
            return any(str(path) in _text(pid, "maps") for pid in ours)
        return False

    def _processes(self) -> set[int]:
        pids = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
        below = {int(pid) for pid in pids if self._has(pid)}
        return (below | descendants(os.getpid()).keys()) - {os.getpid()}

    def _has(self, pid: str) -> bool:
        """Return whether a process keeps its temporary files in one of the folders."""
        found = re.search(r"(?:^|\0)TMPDIR=([^\0]+)", _text(pid, "environ"))
        return found is not None and found[1].startswith(self._prefixes)


def _describe(pid: int) -> str:
    command = _text(pid, "cmdline").replace("\0", " ")[:200]
    return f"{command}, started by {_environment(pid).get('PYTEST_CURRENT_TEST', 'a test')}"


def _environment(pid: int) -> dict[str, str]:
    return dict(_pairs(_text(pid, "environ")))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\0"):
        name, _, value = line.partition("=")
        yield name, value


def _text(pid: int | str, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", errors="replace") as file:  # noqa: PTH123 - half the time
            return file.read()
    except OSError:
        return ""


def _remove(thing: Path | int) -> None:
    with contextlib.suppress(OSError):
        if isinstance(thing, int):
            os.kill(thing, signal.SIGKILL)
        elif thing.is_dir() and not thing.is_symlink():
            shutil.rmtree(thing)
        else:
            thing.unlink()
