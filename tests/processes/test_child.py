"""One class for all child processes; tests/triton/server/test_process.py has the guard's part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trtllm_truss.processes.child import Child, GuardedChild


def child(program: str, **options: object) -> Child:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    return Child(process, **options)  # type: ignore[arg-type]


def test_every_line_arrives_although_some_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []

    def take(line: str) -> None:
        if line in ("1", "2"):
            raise ValueError(line)
        lines.append(line)

    process = child("print(*range(5), sep='\\n'); print('é', end='')", on_line=take, name="five")
    assert process.wait() == 0
    process.wait_for_output()
    assert lines == ["0", "3", "4", "é"]
    assert process.tail == ("0", "1", "2", "3", "4", "é")
    assert [record.getMessage() for record in caplog.records] == [
        "cannot forward the output of five"
    ]


@pytest.mark.parametrize(("newline", "lines"), [("\n", ("1\r2",)), (None, ("1", "2"))])
def test_the_end_of_a_line(newline: str | None, lines: tuple[str, ...]) -> None:
    process = child("print('1\\r2')", newline=newline)
    process.wait()
    process.wait_for_output()
    assert process.tail == lines


def test_no_signal_follows_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have its id by then."""
    process = child("")
    process.wait()
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: signals.append(number))
    process.terminate()
    process.kill()
    assert signals == []


def test_what_a_killed_guard_leaves_is_gone_before_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    started = threading.Event()
    seen: list[bool] = []
    process = GuardedChild(
        [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(600)"],
        os.environ,
        run_id="of_a_killed_guard",
        orphan_grace_s=0,
        folder=folder,
        on_line=lambda _: started.set(),
        on_exit=lambda status: seen.append(folder.exists()),
    )
    started.wait()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert seen == [False]
    process.end(0)
