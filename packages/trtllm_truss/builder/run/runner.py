"""Run one build command behind the process guard, which ends it with this process."""

from __future__ import annotations

import io
import secrets
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trtllm_truss.builder.run.failures import describe_failure
from trtllm_truss.errors import BuildError
from trtllm_truss.processes import process_guard
from trtllm_truss.processes.spawning import spawn_guarded

_TAIL_LINES = 200
_PROGRESS_S = 10.0
_STOP_S = 5.0
_LINE_CHARACTERS = 120


def run_command(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    report: Callable[[str], None],
) -> None:
    """Run a command and append its output to a log.

    `report` receives an output line about every ten seconds.

    Raises:
        BuildError: the command failed; the message explains it by the last lines.
    """
    run_id = f"truss-build-{secrets.token_hex(8)}"
    child = spawn_guarded(
        command,
        {**environment, "PYTHONUNBUFFERED": "1"},
        run_id=run_id,
        orphan_grace_s=_STOP_S,
        cwd=log.parent,  # Python imports modules from there, so never from a folder of the user's
    )
    try:
        tail = _follow(child, log, report)
        status = child.wait()
    except BaseException:
        _stop(child)
        raise
    finally:
        assert child.stdin is not None
        child.stdin.close()
        process_guard.kill_marked(run_id)
    if status != 0:
        raise BuildError(describe_failure(name, status, tail, log))


def _follow(child: subprocess.Popen[bytes], log: Path, report: Callable[[str], None]) -> list[str]:
    """Copy the output; return its last lines."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reported = time.monotonic()
    assert child.stdout is not None
    output = io.TextIOWrapper(child.stdout, encoding="utf-8", errors="replace")
    with output, log.open("a", encoding="utf-8") as file:
        for line in output:
            file.write(line)
            file.flush()
            if words := line.strip():
                tail.append(words)
                if time.monotonic() - reported >= _PROGRESS_S:
                    reported = time.monotonic()
                    report(words[:_LINE_CHARACTERS])
    return list(tail)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Close the guard's input, which makes it end the command."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(2 * _STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
