"""Kill Triton if this backend process, or its engine, dies."""

from __future__ import annotations

import os
import signal
import subprocess

_PATIENCE_S = 1
_WATCH = f"""
read -r word
case "$word" in
done) exit ;;
end) sleep {_PATIENCE_S} ;;
*) echo "$0: the backend's process ended" >&2 ;;
esac
kill -KILL "$1" 2>/dev/null
"""


class KillParentOnDeath:
    """A child process that kills Triton, our parent, if this process ends before `stop`.

    Triton does not notice the death of a backend's process, for example by the OOM killer: it stays
    "ready", and requests in flight hang forever. Its supervisor notices Triton's death.
    """

    def __init__(self) -> None:
        self._server = os.getppid()
        self._watcher = subprocess.Popen(
            ["sh", "-c", _WATCH, "kill-parent-on-death", str(self._server)], stdin=subprocess.PIPE
        )

    def end_parent(self) -> None:
        """Ask Triton to exit; the child process kills it if it is still running after a second.

        Triton may wait for responses that a dead engine owes, and each log line and response of
        this process waits for Triton. So call this first; nothing that blocks here can delay the
        kill.
        """
        os.kill(self._server, signal.SIGTERM)
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(b"end\n")
        self._watcher.stdin.flush()

    def stop(self) -> None:
        """Stop the child process; Triton keeps running unless `end_parent` was called."""
        self._watcher.communicate(b"done\n")
