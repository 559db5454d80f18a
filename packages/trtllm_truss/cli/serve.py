"""`serve`: the Truss in the foreground until a signal ends it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.truss_server import TrussServer
from trtllm_truss.errors import StartupError
from trtllm_truss.settings.loading import parse_settings


def serve(truss: Path, config: Path | None, port: int) -> int:
    """Serves until SIGTERM or SIGINT, then lets running answers finish; a second one cuts them.

    Returns:
        0 after a signal; 1 when the server ended by itself.

    Raises:
        StartupError: the Truss did not start.
    """
    settings = parse_settings(read_config(truss, config))
    with TrussServer(truss, config, port, _show) as server:
        stopping = _Stopping(server, settings.serving.drain_timeout_s)
        try:
            server.wait_until_ready()
        except StartupError:
            if stopping.requested:
                return 0
            raise
        _show(f"ready: POST {server.url}")
        _show(f'  curl -N {server.url} -d \'{{"prompt": "The sky is", "max_tokens": 32}}\'')
        status = server.wait()
    if stopping.requested:
        return 0
    _show(f"error: the server ended by itself with status {status}.")
    return 1


class _Stopping:
    """Turns signals into orders to the server."""

    def __init__(self, server: TrussServer, drain_timeout_s: float) -> None:
        self.requested = False
        self._server = server
        self._drain_timeout_s = drain_timeout_s
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._server.stop(0)
            return
        self.requested = True
        _show(f"{signal.Signals(number).name}: letting running answers finish …")
        self._server.stop(self._drain_timeout_s)


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
