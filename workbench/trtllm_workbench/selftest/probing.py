"""Run a program with a time limit, and leave none of its processes behind."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.processes.process_guard import kill_marked, request_stop
from trtllm_truss.processes.spawning import kill_guard, spawn_guarded

_GRACE_S = 0.5
_END_LIMIT_S = 8.0


@dataclass(frozen=True, slots=True)
class Probed:
    """What a program did.

    Attributes:
        status: its exit status; None if its time was over.
        output: standard output and standard error.
    """

    status: int | None
    output: str

    @property
    def found(self) -> Mapping[str, Any] | None:
        """The last line of JSON in the output; None if there is none or the program failed."""
        for line in reversed(self.output.splitlines() if self.status == 0 else []):
            if line.startswith("{"):
                with suppress(ValueError):  # a library may log such lines
                    content: Mapping[str, Any] = json.loads(line)
                    return content
        return None


def probe(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, limit_s: float
) -> Probed:
    """Run a program behind a guard; end it and all that it started when its time is over.

    Args:
        command: the argument vector.
        environment: of the program.
        folder: where it runs.
        limit_s: its time.
    """
    run_id = f"truss-probe-{secrets.token_hex(8)}"
    child = spawn_guarded(command, environment, run_id=run_id, orphan_grace_s=_GRACE_S, cwd=folder)
    assert child.stdin is not None
    assert child.stdout is not None
    pieces: list[bytes] = []
    reader = threading.Thread(target=pieces.extend, args=(child.stdout,), daemon=True)
    reader.start()
    try:
        status = _wait(child, limit_s)
        if status is None:
            request_stop(child.stdin, 0.0)
            if _wait(child, _END_LIMIT_S) is None:
                kill_guard(child)
    finally:
        child.stdin.close()
        child.wait()
        kill_marked(run_id)
        reader.join(_END_LIMIT_S)
        child.stdout.close()
    return Probed(status, b"".join(pieces).decode(errors="replace"))


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> int | None:
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
