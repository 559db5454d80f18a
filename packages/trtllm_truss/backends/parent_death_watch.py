"""Ends Triton when this process dies without a word."""

from __future__ import annotations

import os
import subprocess

_WATCH = 'read -r word || kill -KILL "$1" 2>/dev/null'


class ParentDeathWatch:
    """A small process beside ours that kills Triton if ours ends before `let_go`.

    Triton does not notice the death of a backend's process (killed for memory, say): it stays
    "ready" and the requests in flight hang for ever. Its supervisor does notice Triton's death.
    """

    def __init__(self) -> None:
        server = os.getppid()
        self._watcher = subprocess.Popen(
            ["sh", "-c", _WATCH, "lifeline", str(server)], stdin=subprocess.PIPE
        )

    def let_go(self) -> None:
        """End the watch; Triton lives on."""
        self._watcher.communicate(b"done\n")
