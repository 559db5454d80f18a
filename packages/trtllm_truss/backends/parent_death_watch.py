"""Kill Triton if this backend process dies."""

from __future__ import annotations

import os
import subprocess

_WATCH = 'read -r word || kill -KILL "$1" 2>/dev/null'


class ParentDeathWatch:
    """A child process that kills Triton, our parent, if this process ends before `stop`.

    Triton does not notice the death of a backend's process (killed for memory, say): it stays
    "ready", and requests in flight hang for ever. Its supervisor notices Triton's death.
    """

    def __init__(self) -> None:
        server = os.getppid()
        self._watcher = subprocess.Popen(
            ["sh", "-c", _WATCH, "parent-death-watch", str(server)], stdin=subprocess.PIPE
        )

    def stop(self) -> None:
        """End the watch; Triton lives on."""
        self._watcher.communicate(b"done\n")
