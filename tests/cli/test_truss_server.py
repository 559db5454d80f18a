"""The process that `serve` and `demo` start."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import EXAMPLE, ROOT
from tests.support.truss_process import free_port

from trtllm_truss.cli import truss_server
from trtllm_truss.cli.common import unwinding
from trtllm_truss.processes.spawning import spawn_guarded


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_process_starts_ends_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def spawn(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(spawn_guarded(*arguments, **options))
        signal.raise_signal(number)
        return started[0]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(truss_server, "spawn_guarded", spawn)
    server = truss_server.TrussServer(ROOT, EXAMPLE, free_port(), lambda line: None)
    with unwinding(), pytest.raises((SystemExit, KeyboardInterrupt)), server:
        pytest.fail("the signal was lost")
    with started[0] as process:  # closes its pipes
        assert process.poll() is not None
    assert not list(tmp_path.iterdir())
