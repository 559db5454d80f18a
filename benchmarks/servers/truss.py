"""`trtllm-truss serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.paths import ROOT
from benchmarks.servers.target import Target
from trtllm_truss.observability.status import STATUS_VARIABLE, State, StatusReader
from trtllm_truss.triton.server.ports import unused_ports

PREDICT_PATH = "/v1/models/model:predict"
CONTAINERS = "trtllm_truss.cli.main"
"""Without the process of the workbench's `serve`, which prints the server's log for people."""
_START_LIMIT_S = 120.0
_END_LIMIT_S = 60.0
_TAIL_LINES = 40
_TICK_S = 0.005


@contextmanager
def serve(
    config: Path,
    backends: Path | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    arguments: Sequence[str] = (),
    module: str = "trtllm_truss",
    **variables: str,
) -> Iterator[Target]:
    """Serve one configuration during the block and clean up after it.

    Args:
        config: a config.yaml.
        backends: for `TRITON_BACKEND_DIRECTORY`.
        log: receives the server's log.
        on_line: called with each line of the log, on another thread.
        arguments: further arguments of `serve`.
        module: contains the command; `CONTAINERS` is the one that a container runs with our own
            server.
        variables: added to its environment.

    Raises:
        RuntimeError: the server was not ready in time, or the block raised one; the message ends
            with the last lines of the log.
    """
    (port,) = unused_ports(1)
    named = ["--truss", str(ROOT), "--config", str(config), "--port", str(port)]
    environment = {**os.environ, **variables}
    if backends is not None:
        environment["TRITON_BACKEND_DIRECTORY"] = str(backends)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-"))
        status_file = Path(folder, "status")
        status = stack.enter_context(closing(StatusReader(status_file)))
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", *named, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, STATUS_VARIABLE: str(status_file)},
            # Linux shares the CPU between sessions (autogroups); the other servers have their own.
            start_new_session=True,
        )
        reader = threading.Thread(target=_drain, args=(process, tail, log, on_line), daemon=True)
        reader.start()
        stack.callback(_end, process, reader)
        try:
            _wait(process, status)
            yield Target(process.pid, port, PREDICT_PATH, status_file=status)
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}\nThe last lines of the server's log:\n{''.join(tail)}"
            ) from error


def _end(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    reader.join()


def _drain(
    process: subprocess.Popen[str],
    tail: deque[str],
    log: Path | None,
    on_line: Callable[[str], None],
) -> None:
    assert process.stderr is not None
    with process.stderr as lines, (log or Path(os.devnull)).open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line)
            tail.append(line)
            on_line(line)


def _wait(process: subprocess.Popen[str], status: StatusReader) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while (told := status.read()) is None or told.state is not State.READY:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server did not become ready")
        time.sleep(_TICK_S)
