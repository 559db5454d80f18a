"""Remove temporary folders and shared-memory segments once the process that uses them is gone.

Runs as a program, ``python -I -S folder_guard.py PARENT_PID``, and imports only the standard
library. Its standard input consists of records that end in NUL: ``+PREFIX`` registers all files and
folders whose paths start with PREFIX for removal, ``-PREFIX`` unregisters them. When the input
ends, the parent is gone or about to exit: the guard removes everything registered, prints a line,
and once the parent is gone, removes anything that it has created since.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time

_PR_SET_NAME = 15
_NAME = b"truss-folders"
_TICK_S = 0.02
_LIMIT_S = 60.0
"""Time for a parent to exit after it has closed its end of the pipe."""


def remove(prefix: str) -> None:
    """Remove every file and folder whose path starts with a prefix."""
    folder, beginning = os.path.split(prefix)
    try:
        names = [name for name in os.listdir(folder) if name.startswith(beginning)]  # noqa: PTH208
    except OSError:
        return
    for name in names if beginning else ():
        path = f"{folder}/{name}"
        try:
            os.unlink(path)  # noqa: PTH108 - pathlib costs 10 ms here
        except OSError:
            shutil.rmtree(path, ignore_errors=True)


def _read_all() -> list[str]:
    """Return the prefixes that are registered when the input ends."""
    kept: dict[bytes, None] = {}
    rest = b""
    while content := os.read(0, 1 << 16):
        *records, rest = (rest + content).split(b"\0")
        for record in records:
            if record[:1] == b"+":
                kept[record[1:]] = None
            else:
                kept.pop(record[1:], None)
    return [os.fsdecode(prefix) for prefix in kept]


def main(parent: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    prefixes = _read_all()
    for prefix in prefixes:
        remove(prefix)
    with contextlib.suppress(OSError):  # nobody may be waiting for it
        os.write(1, b"removed\n")
    until_s = time.monotonic() + _LIMIT_S
    while os.getppid() == parent and time.monotonic() < until_s:
        time.sleep(_TICK_S)
    for prefix in prefixes:
        remove(prefix)


if __name__ == "__main__":
    main(int(sys.argv[1]))
