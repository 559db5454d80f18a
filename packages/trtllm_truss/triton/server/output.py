"""The server's output: read without pause, kept as a bounded tail, forwarded line by line."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

logger = logging.getLogger(__name__)

_TAIL_LINES = 200
_LINE_BYTES = 8192
# ``src/model_lifecycle.cc`` of triton-inference-server/core, and ``src/main.cc`` of .../server; the
# same from r23.10 to r26.07. A server that cannot load a model exits.
_LOAD_FAILED = re.compile(
    r"failed to load '[^']+' version \d+: |^error: creating server: .*failed to load all models"
)


class Output:
    """The last lines of one server, over all its starts; `on_line` receives every line.

    Attributes:
        load_failed_s: time of the first line, by the monotonic clock, that says that a model failed
            to load; None without one.
    """

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._on_line = on_line
        self.load_failed_s: float | None = None

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._lines.copy())

    def drain(self, stream: IO[bytes]) -> threading.Thread:
        """Read a new start's output to its end in a thread, and close it.

        A child whose pipe is full blocks, so the thread waits for nothing but ``on_line``.

        Raises:
            RuntimeError: no thread can be started; the stream is closed.
        """
        self._lines.clear()
        self.load_failed_s = None
        thread = threading.Thread(target=self._read, args=(stream,), name="triton-output")
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:
            stream.close()
            raise
        return thread

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in iter(lambda: stream.readline(_LINE_BYTES), b""):
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                if self.load_failed_s is None and _LOAD_FAILED.search(line):
                    self.load_failed_s = time.monotonic()
                if self._on_line is not None:
                    self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        assert self._on_line is not None
        try:
            self._on_line(line)
        except Exception:
            logger.exception("cannot forward a line of the server's output")
