"""`serve`: run the Truss in the foreground until a signal."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations
from types import FrameType
from typing import Any

from trtllm_truss.cli.common import add_truss_options
from trtllm_truss.cli.output import echo
from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError, StartupError, TrussError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.status import STATUS_VARIABLE, ServiceStatus
from trtllm_truss.triton.server.ports import LOOPBACK
from trtllm_workbench.cli.local_main import is_private
from trtllm_workbench.cli.remote_api import RemoteApi
from trtllm_workbench.cli.truss_server import TrussServer
from trtllm_workbench.console.pulse import Pulse

_CONSOLE_PORT = 8081


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on (default: %(default)s; 0.0.0.0 is every address; callers "
        "need no key)",
    )
    parser.add_argument("--port", type=_port, default=8080, help="HTTP port (default: 8080)")
    parser.add_argument(
        "--remote-api",
        type=_port,
        metavar="PORT",
        help="also answer the lookups of `truss predict` on this port, on loopback only",
    )
    parser.add_argument(
        "--console",
        type=_port,
        nargs="?",
        const=_CONSOLE_PORT,
        metavar="PORT",
        help="also serve a page with a chat and live figures on this port, on loopback only "
        f"(default: {_CONSOLE_PORT})",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain running requests; a second signal aborts them.

    Returns:
        0 after a signal; 1 when the server exited by itself.

    Raises:
        SettingsError: the settings or the ports are wrong.
        StartupError: the Truss did not start.
    """
    status = ServiceStatus.published(os.environ)
    try:
        return _serve(options, status)
    except TrussError as error:
        status.failed(error.message)
        raise


def _serve(options: argparse.Namespace, status: ServiceStatus) -> int:
    _require_different_ports(options)
    truss_config = read_config(options.truss, options.config)
    settings = parse_settings(truss_config)
    model_name = str(truss_config.get("model_name") or "model")
    stopping = _Stopping(settings.serving.drain_timeout_s)
    pulse = Pulse(lambda: server.status)

    def on_record(record: Mapping[str, Any]) -> None:
        pulse.on_record(record)
        # Each change of the status precedes a line of the log.
        if STATUS_VARIABLE in os.environ and (told := server.status) is not None:
            status.follow(told)

    server = TrussServer(options.truss, options.config, options.port, echo, options.host, on_record)
    with ExitStack() as stack:
        remote_api = None
        if options.remote_api is not None:
            api = RemoteApi(options.remote_api, model_name, server.url)
            remote_api = stack.enter_context(api)
        if options.console is not None:
            from trtllm_workbench.cli.console_server import ConsoleServer  # imports a web server

            console = ConsoleServer(options.console, model_name, pulse, server, settings.serving)
            echo(f"console: {stack.enter_context(console).url}")
        stack.enter_context(server)
        stopping.server = server
        stopping.pulse = pulse
        if not is_private(options.host):
            echo(
                f"warning: --host is {options.host}: anyone who can reach port {options.port} can "
                "use this server, which requires no key; put it behind a firewall or a proxy."
            )
        try:
            server.wait_until_ready()
        except StartupError:
            if stopping.requested:
                return 0
            raise
        pulse.ready()
        status.ready()
        echo(f"ready: POST {server.url}")
        echo(f'  curl -N {server.url} -d \'{{"prompt": "The sky is", "max_tokens": 32}}\'')
        echo(f"  trtllm-truss chat --url {server.root_url}")
        if remote_api is not None:
            echo(f"  {remote_api.example}")
        exit_status = server.wait()
    if stopping.requested:
        return 0
    echo(f"error: the server exited with status {exit_status}.")
    return 1


def _require_different_ports(options: argparse.Namespace) -> None:
    ports = {"--port": options.port, "--remote-api": options.remote_api}
    ports["--console"] = options.console
    given = [(name, port) for name, port in ports.items() if port is not None]
    for (name, port), (other, other_port) in combinations(given, 2):
        if port == other_port:
            raise SettingsError(f"{name} and {other} are both {port}; they must differ.")


def _port(text: str) -> int:
    if text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be 1 to 65535")


class _Stopping:
    """Stops the server on a signal; before there is a server, ends the command."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.requested = False
        self.server: TrussServer | None = None
        self.pulse: Pulse | None = None
        self._drain_timeout_s = drain_timeout_s
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self.requested = not self.requested, True
        if self.server is None:
            if is_first:
                raise SystemExit(0)
        elif is_first:
            echo(f"{signal.Signals(number).name}: draining running requests …")
            self.server.stop(self._drain_timeout_s)
            if self.pulse is not None:
                self.pulse.stopping()
        else:
            self.server.stop(0)
