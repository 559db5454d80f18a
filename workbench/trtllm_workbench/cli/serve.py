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

from trtllm_truss.cli.common import add_truss_options, draining, echo, port
from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError, StartupError, TrussError
from trtllm_truss.local_requests import LOOPBACK, is_private
from trtllm_truss.observability.status import STATUS_VARIABLE, ServiceStatus
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Serving
from trtllm_workbench.cli.remote_api import RemoteApi
from trtllm_workbench.cli.truss_server import TrussServer, own_server
from trtllm_workbench.console.pulse import Pulse

_CONSOLE_PORT = 8081
_OWN_END_S = 15.0
"""For our own server: 5 s for aborted requests to finish, and 10 for Triton."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on (default: %(default)s; 0.0.0.0 is every address; callers "
        "need no key)",
    )
    parser.add_argument("--port", type=port, default=8080, help="HTTP port (default: 8080)")
    parser.add_argument(
        "--remote-api",
        type=port,
        metavar="PORT",
        help="also answer the lookups of `truss predict` on this port, on loopback only",
    )
    parser.add_argument(
        "--console",
        type=port,
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
    own = own_server(options.truss, options.config)
    stopping = _Stopping(patience_s(settings.serving, own=own), reports=not own)
    pulse = Pulse(lambda: server.status)

    def on_record(record: Mapping[str, Any]) -> None:
        pulse.on_record(record)
        # Each change of the status precedes a log line.
        if STATUS_VARIABLE in os.environ and (told := server.status) is not None:
            status.follow(told)

    server = TrussServer(options.truss, options.config, options.port, echo, options.host, on_record)
    echo(f"starting {model_name} on port {options.port} …")  # Truss's import takes seconds
    with ExitStack() as stack:
        remote_api = None
        if options.remote_api is not None:
            api = RemoteApi(options.remote_api, model_name, server.url)
            remote_api = stack.enter_context(api)
        if options.console is not None:
            # imports a web server
            from trtllm_workbench.console.app import ConsoleApp, ConsoleServer, Upstream

            upstream = Upstream(server.connect_host, server.port)
            app = ConsoleApp(pulse, upstream, model_name, server.root_url)
            console = ConsoleServer(options.console, app, settings.serving)
            echo(f"console: {stack.enter_context(console).url}")
        stack.enter_context(server)
        stopping.watch(server, pulse)
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
        echo(f"ready: OpenAI {server.root_url}/v1, predict {server.url}")
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
    given = [(name, number) for name, number in ports.items() if number is not None]
    for (name, number), (other, other_number) in combinations(given, 2):
        if number == other_number:
            raise SettingsError(f"{name} and {other} are both {number}; they must differ.")


def patience_s(limits: Serving, *, own: bool) -> float:
    """Return how long a server may drain; our own server exits by itself, a little earlier."""
    return limits.drain_timeout_s + (limits.drain_notice_s + _OWN_END_S if own else 0)


class _Stopping:
    """Stops the server on a signal or, before there is a server, the command."""

    def __init__(self, patience_s: float, *, reports: bool = True) -> None:
        self._reports = reports  # our own server does
        self.requested = False
        self._server: TrussServer | None = None
        self._pulse: Pulse | None = None
        self._patience_s = patience_s
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def watch(self, server: TrussServer, pulse: Pulse) -> None:
        """Stop a server on a signal from now on.

        Raises:
            SystemExit: a signal came before. Python drops an exception raised by `_on_signal` in a
                finalizer or a weak reference's callback, such as that of an import lock.
        """
        self._server, self._pulse = server, pulse
        if self.requested:
            raise SystemExit(0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self.requested = not self.requested, True
        if self._server is None:
            if is_first:
                raise SystemExit(0)
        elif is_first:
            if self._reports:
                echo(draining(number, self._patience_s))
            self._server.stop(self._patience_s)
            if self._pulse is not None:
                self._pulse.stopping()
        else:
            self._server.stop(0)
