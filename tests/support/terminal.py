"""A command on a terminal of its own, whose keys reach it as a user's do."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

_PROGRAM = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
from trtllm_workbench.cli.main import main
sys.exit(main())
"""


class Terminal:
    """`trtllm-truss` with arguments; Ctrl-C in its input is SIGINT.

    Attributes:
        output: everything it has written.
    """

    def __init__(self, *arguments: str) -> None:
        self._screen, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        os.close(inside)
        self.output = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, pattern: str) -> str:
        """Wait for a pattern behind the last one; return the output up to its end."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.compile(pattern, re.DOTALL).search(self.output, self._seen)):
            assert time.monotonic() < deadline, self.output[self._seen :]
            assert self._read(), self.output
        before, self._seen = self._seen, found.end()
        return self.output[before : self._seen]

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.output
        return self._process.wait(PATIENCE_S)

    def _read(self) -> bool:
        """Read for up to 0.1 s; return False once the command has ended."""
        if not select.select([self._screen], [], [], 0.1)[0]:
            return True
        with contextlib.suppress(OSError):  # Linux: all of the inner side is closed
            if data := os.read(self._screen, 65536):
                self.output += self._decode(data)
                return True
        return False
