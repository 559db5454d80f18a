"""Kill Triton if this backend process dies."""

from __future__ import annotations

import os
import subprocess

_WATCH = 'read -r word || kill -KILL "$1" 2>/dev/null'


class KillParentOnDeath:
    """A child process that kills Triton, our parent, if this process ends before `stop`.

    Triton does not notice the death of a backend's process, for example by the OOM killer: it stays
    "ready", and requests in flight hang forever. Its supervisor notices Triton's death.
    """

    def __init__(self) -> None:
        server = os.getppid()
        self._watcher = subprocess.Popen(
            ["sh", "-c", _WATCH, "kill-parent-on-death", str(server)], stdin=subprocess.PIPE
        )

    def stop(self) -> None:
        """End the child process; Triton keeps running."""
        self._watcher.communicate(b"done\n")
