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
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.processes.process_guard import _env_makers, all_pids, descendants

_TICK_S = 0.2
_NAMES = ("python_env_", "trtllm", "truss-", "ompi.", "prte.", "pmix")
_PROCESS_ID = re.compile(r"(?<![\da-f-])\d{2,}(?![\da-f-])")  # no part of a UUID
_PREFIXES = tuple(f"/tmp/{name}" for name in _NAMES)


class LeftBehind:
    """Watches for new files and processes from a thread."""

    def __init__(self, folders: Collection[Path], running: Collection[str]) -> None:
        """Record existing files.

        Args:
            folders: the session's folders; the first must be empty in the end.
            running: names of the currently running tests.
        """
        resolved = [folder.resolve() for folder in folders]
        self._own = resolved[:1]
        self._prefixes = tuple(map(str, resolved))
        self._running = running
        self._known: dict[str, str | None] = dict.fromkeys(self._elsewhere())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> list[str]:
        """Remove leftovers and return their descriptions."""
        self._ended.set()
        self._thread.join()
        settles(lambda: not self._left(), PATIENCE_S)  # guards may still be cleaning up
        left = self._left()
        for thing in left:
            _remove(thing)
        return [f"{thing}: {origin}" for thing, origin in left.items()]

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_S):
            with contextlib.suppress(OSError, LookupError):  # files may disappear meanwhile
                self._look()

    def _look(self) -> None:
        own = set().union(*(_paths(str(folder)) for folder in self._own))
        appeared = (self._elsewhere() | own) - self._known.keys()
        if appeared:
            origin = f"came up while {', '.join(self._running) or 'no test'} ran"
            ours, makers = cache(self._processes), cache(_makers)
            for path in appeared:
                is_ours = self._is_of(Path(path), ours, makers)
                self._known[path] = origin if is_ours else None

    def _left(self) -> dict[Path | int, str]:
        self._look()
        known = {Path(path): origin for path, origin in self._known.items() if origin}
        paths = {path: origin for path, origin in known.items() if path.exists()}
        processes = {pid: _describe(pid) for pid in self._processes()}
        return {**paths, **processes}

    def _elsewhere(self) -> set[str]:
        temporary = {path for path in _paths("/tmp") if path.startswith(_PREFIXES)}
        return (temporary | _paths("/dev/shm")) - {*map(str, self._own)}

    def _is_of(
        self,
        path: Path,
        our_processes: Callable[[], set[int]],
        env_makers: Callable[[], Mapping[int, tuple[float, float]]],
    ) -> bool:
        if path.parent in self._own or any(map(self._has, _PROCESS_ID.findall(path.name))):
            return True
        ours = our_processes()  # reads hundreds of files
        with contextlib.suppress(OSError):  # it has disappeared
            names = [path.name, *(each.name for each in path.rglob("*"))]
            numbers = {int(number) for name in names for number in _PROCESS_ID.findall(name)}
            if numbers & {*ours, os.getpid()}:
                return True
            if path.name.startswith("python_env_"):
                made_s = path.lstat().st_ctime
                makers = {pid for pid, (begin_s, end_s) in env_makers().items()
                          if begin_s < made_s < end_s}  # fmt: skip
                return bool(makers) and makers <= ours
            return any(str(path) in _text(pid, "maps") for pid in ours)
        return False

    def _processes(self) -> set[int]:
        below = {pid for pid in all_pids() if self._has(pid)}
        return (below | descendants(os.getpid())) - {os.getpid()}

    def _has(self, pid: int | str) -> bool:
        """Return whether a process keeps its temporary files in one of the folders."""
        found = re.search(r"(?:^|\0)TMPDIR=([^\0]+)", _text(pid, "environ"))
        return found is not None and found[1].startswith(self._prefixes)


def _paths(folder: str) -> set[str]:
    return {f"{folder}/{name}" for name in os.listdir(folder)}  # noqa: PTH208 - a tenth of the time


def _makers() -> dict[int, tuple[float, float]]:
    """Look at processes with Triton's names only: the maps of all others take 100 ms to read."""
    tritons = [pid for pid in all_pids() if _text(pid, "comm").startswith("triton")]
    return _env_makers(tritons)


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
