"""`serve`: run the Truss in the foreground until a signal.

For `truss predict` it answers a part of Baseten's API for one local server. Truss's command line
looks its model up by GraphQL at ``<remote URL>/graphql/`` and posts the body to
``<hostname>/development/predict`` or ``<hostname>/deployment/<id>/predict`` (truss 0.18,
`remote/baseten/api.py` and `service.py`). The hostname returned here ends in ``#``: the appended
path becomes the URL's fragment, which is never sent. So the body goes straight to the route of
Truss's own server, without a proxy in the stream.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import re
import shlex
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from itertools import combinations
from types import FrameType
from typing import Any

from trtllm_truss.cli.common import add_truss_options, draining, echo, port
from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError, StartupError, TrussError
from trtllm_truss.local_requests import LOOPBACK, is_private
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Serving
from trtllm_truss.status import STATUS_VARIABLE, ServiceStatus
from trtllm_workbench.cli.truss_server import TrussServer, own_server
from trtllm_workbench.console.pulse import Pulse

_PATH = "/graphql/"
_LARGEST_QUERY_BYTES = 65536
_SOCKET_TIMEOUT_S = 30
_VERSION_ID = "local"
_FIRST_FIELD = re.compile(r"\s*(?:query\b\s*\w*\s*)?\{\s*(\w+)")


class RemoteApi:
    """Answers lookups on loopback while entered; every id resolves to the one model.

    Args:
        port: on 127.0.0.1, opened on entry.
        model_name: from config.yaml.
        predict_url: the predict route of Truss's own server.
    """

    def __init__(self, port: int, model_name: str, predict_url: str) -> None:
        self._port = port
        self._model_name = model_name
        self._predict_url = predict_url

    @property
    def example(self) -> str:
        """A command line that uses this API."""
        return (
            f"BASETEN_TRUSS_AUTH_REMOTE_URL=http://localhost:{self._port} "
            "BASETEN_TRUSS_AUTH_API_KEY=any truss predict "
            f'--model {shlex.quote(self._model_name)} -d \'{{"prompt": "The sky is"}}\''
        )

    def __enter__(self) -> RemoteApi:
        try:
            self._server = _Server(self._port, _facts(self._model_name, self._predict_url))
        except OSError as error:
            raise SettingsError(
                f"--remote-api is {self._port}; that port cannot be used "
                f"({error.strerror or error}). Choose another one."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, facts: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.facts = facts


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _SOCKET_TIMEOUT_S

    def do_POST(self) -> None:
        if self.path != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {_PATH} is served here")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= _LARGEST_QUERY_BYTES:
                raise ValueError
            query = json.loads(self.rfile.read(length))["query"]
            body = json.dumps(_answer(query, self.server.facts)).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            self.send_error(HTTPStatus.BAD_REQUEST, 'the body must be {"query": "..."}')
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the server's log."""


def _answer(query: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the first field that a query selects, with every known value."""
    field = _FIRST_FIELD.match(query)
    if field is None or field[1] not in facts:
        asked = "this query" if field is None else field[1]
        message = f"`trtllm-truss serve` answers the lookups of `truss predict`, not {asked}."
        return {"errors": [{"message": message}]}
    return {"data": {field[1]: facts[field[1]]}}


def _facts(model_name: str, predict_url: str) -> dict[str, Any]:
    """Return the values for the lookups by model, by deployment and by name."""
    team = {"id": "local", "name": "local", "default": True}
    version = {
        "id": _VERSION_ID,
        "semver": "0.0.0",
        "truss_hash": "",
        "truss_signature": "",
        "is_draft": True,
        "is_primary": True,
        "current_model_deployment_status": {"status": "MODEL_READY"},
    }
    model = {"id": model_name, "name": model_name, "hostname": f"{predict_url}#", "team": team}
    return {
        "model": {**model, "primary_version": version, "versions": [version]},
        "model_version": {**version, "oracle": model},
        "models": [model],
        "teams": [team],
    }


_CONSOLE_PORT = 8081
_OWN_END_S = 15.0
"""For our own server: 5 s for cut requests to end, and 10 for Triton."""


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
        # Each change of the status precedes a line of the log.
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
    """Return how long a server may drain; our own one ends by itself, and a little earlier."""
    return limits.drain_timeout_s + (limits.drain_notice_s + _OWN_END_S if own else 0)


class _Stopping:
    """Stops the server on a signal; before there is a server, ends the command."""

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
            SystemExit: a signal came before. Python drops the one of `_on_signal` in a finalizer
                or a callback of a weak reference, such as that of an import's lock.
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
