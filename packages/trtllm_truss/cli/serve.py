"""`serve`: the Truss in the foreground until a signal ends it."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.local_main import is_private
from trtllm_truss.cli.remote_api import RemoteApi
from trtllm_truss.cli.terminal import tell
from trtllm_truss.cli.truss_server import TrussServer
from trtllm_truss.errors import SettingsError, StartupError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.triton.server.ports import LOOPBACK


def serve(
    truss: Path,
    config: Path | None,
    port: int,
    remote_api_port: int | None,
    host: str = LOOPBACK,
) -> int:
    """Serves until SIGTERM or SIGINT, then lets running answers finish; a second one cuts them.

    Args:
        truss: the Truss's folder.
        config: used in place of its config.yaml.
        port: HTTP port.
        remote_api_port: where `truss predict` may ask for the model; None for nowhere.
        host: an address of this machine, or its name.

    Returns:
        0 after a signal; 1 when the server ended by itself.

    Raises:
        StartupError: the Truss did not start.
    """
    if remote_api_port == port:
        raise SettingsError(
            f"--port and --remote-api are both {port}; each needs a port of its own."
        )
    truss_config = read_config(truss, config)
    settings = parse_settings(truss_config)
    stopping = _Stopping(settings.serving.drain_timeout_s)
    server = TrussServer(truss, config, port, tell, host, settings.serving.max_body_bytes)
    remote_api = None
    if remote_api_port is not None:
        model_name = str(truss_config.get("model_name") or "model")
        remote_api = RemoteApi(remote_api_port, model_name, server.url)
    with remote_api or nullcontext(), server:
        stopping.server = server
        if not is_private(host):
            tell(
                f"warning: --host is {host}: whoever reaches port {port} can use this server, "
                "which asks for no key; put a firewall or a proxy in front of it."
            )
        try:
            server.wait_until_ready()
        except StartupError:
            if stopping.requested:
                return 0
            raise
        tell(f"ready: POST {server.url}")
        tell(f'  curl -N {server.url} -d \'{{"prompt": "The sky is", "max_tokens": 32}}\'')
        if remote_api is not None:
            tell(f"  {remote_api.example}")
        status = server.wait()
    if stopping.requested:
        return 0
    tell(f"error: the server ended by itself with status {status}.")
    return 1


class _Stopping:
    """Turns signals into orders to the server; as long as there is none, they end the command."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.requested = False
        self.server: TrussServer | None = None
        self._drain_timeout_s = drain_timeout_s
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self.requested = not self.requested, True
        if self.server is None:
            if is_first:
                raise SystemExit(0)
        elif is_first:
            tell(f"{signal.Signals(number).name}: letting running answers finish …")
            self.server.stop(self._drain_timeout_s)
        else:
            self.server.stop(0)
