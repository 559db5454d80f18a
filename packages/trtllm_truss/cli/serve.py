"""`serve` in a container: run our own HTTP server in the foreground until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import (
    REGISTRY,
    disable_created_metrics,
    gc_collector,
    platform_collector,
    process_collector,
)
from starlette.types import ASGIApp

from trtllm_truss.cli.common import add_truss_options, draining, port
from trtllm_truss.configuration import read_config
from trtllm_truss.endpoints.application import Application, import_routes, start_service
from trtllm_truss.endpoints.connection_limit import limit_connections
from trtllm_truss.errors import SettingsError
from trtllm_truss.local_requests import LOOPBACK, LocalGuard, addresses
from trtllm_truss.observability.log_lines import batch_log_lines, set_up_logging
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.processes.child import end_everything
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import MountedSecrets, parse_settings, read_environment
from trtllm_truss.settings.model import Serving

logger = logging.getLogger("trtllm_truss")

_DEFAULT_PORT = 8080
_KEEP_ALIVE_S = 75
"""Longer than proxies keep an unused connection: nginx 60 s, Go's and Node's clients less."""

_BACKLOG = 4096
_CUT_S = 5
"""Time for aborted requests to finish; after it, uvicorn cancels them with a traceback each."""

_TICKS_PER_LOOK = 10
"""Ticks between checks; a tick is a tenth of a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.description = (
        "Run the Truss in its own server, as configured by docker_server in config.yaml, until "
        "SIGTERM. Running requests then have serving.drain_timeout_s to finish."
    )
    parser.add_argument(
        "--host", default=LOOPBACK, help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=port,
        help=f"HTTP port (default: docker_server.server_port, else {_DEFAULT_PORT})",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain running requests; a second signal aborts them.

    Raises:
        SettingsError: the settings, the address or the port are wrong.
        StartupError: the Truss failed to start.
    """
    set_up_logging()
    config = read_config(options.truss, options.config)
    number = options.port or _port_of(config.get("docker_server") or {})
    status = ServiceStatus.published(os.environ)
    data_dir = (options.truss / config.get("data_dir", "data")).resolve()
    limits = parse_settings(config).serving
    environment = read_environment(MountedSecrets(config))
    application = Application(config, limits, environment.api_key).alone()
    _choose_metrics()

    def start() -> Service:
        service, defaults = start_service(config, lambda: environment, data_dir, status)
        application.begin(service, import_routes().build_routes(service, defaults))
        batch_log_lines()
        return service

    with contextlib.ExitStack() as stack:
        sockets = _listen(options.host, number, stack)
        server = _Server(LocalGuard(application, options.host), application.drain, limits)
        return server.serve_until_signal(sockets, start)


def _port_of(section: Mapping[str, Any]) -> int:
    number = section.get("server_port", _DEFAULT_PORT)
    try:
        return port(str(number))  # a resolver uses only the last 16 bits of a larger number
    except argparse.ArgumentTypeError as error:
        raise SettingsError(f"docker_server.server_port: {error}.") from None


class _Server(uvicorn.Server):
    """Serves while another thread starts the service, and drains after a signal.

    Args:
        app: the guarded application.
        drain: reports that the server is not ready any more.
        limits: time limits for draining, for the head of a request, and for reading a response.
    """

    def __init__(self, app: ASGIApp, drain: Callable[[], None], limits: Serving) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,  # each engine request already writes a line
                backlog=_BACKLOG,
                http=_protocol(),
                lifespan="off",
                log_config=None,
                proxy_headers=False,  # nothing uses the client's address
                server_header=False,
                timeout_graceful_shutdown=math.ceil(limits.drain_timeout_s) + _CUT_S,
                timeout_keep_alive=_KEEP_ALIVE_S,
                ws="none",
            )
        )
        self._drain = drain
        self._limits = limits
        self._drains_until_s: float | None = None
        self._started: Future[Service] = Future()
        self._stalled: dict[Any, tuple[int, float]] = {}

    def serve_until_signal(self, sockets: list[socket.socket], start: Callable[[], Service]) -> int:
        """Return the exit status."""
        started = self._started

        def begin() -> None:
            try:
                started.set_result(start())
            except BaseException as error:  # noqa: BLE001 - the main thread looks at it
                started.set_exception(error)
                self.should_exit = True

        threading.Thread(target=begin, name="start", daemon=True).start()
        self.run(sockets)
        if not started.done():  # a start cannot be interrupted
            end_everything()
            os._exit(0)
        if started.exception() is not None:  # it is in the log
            return 1
        started.result().stop()
        return 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and abort at the second."""
        self.force_exit = self._drains_until_s is not None
        if not self.force_exit:
            limit_s = self._limits.drain_notice_s + self._limits.drain_timeout_s
            logger.info("%s", draining(sig, limit_s))
        self.should_exit |= self.force_exit
        self._drains_until_s = time.monotonic() + self._limits.drain_notice_s
        self._drain()

    async def on_tick(self, counter: int) -> bool:
        """Return True to stop listening; also close connections whose clients take too long."""
        if counter % _TICKS_PER_LOOK == 0:
            self._close_stalled()
        until_s = self._drains_until_s
        return await super().on_tick(counter) or (
            until_s is not None and time.monotonic() >= until_s
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests, abort those left after the drain timeout, and stop the engine.

        Stop the engine before the loop closes: Triton waits for open calls, and the last log lines
        come from the loop.
        """
        asyncio.get_running_loop().call_later(self._limits.drain_timeout_s, self._cut)
        await super().shutdown(sockets)
        if self._started.done() and self._started.exception() is None:
            await asyncio.to_thread(self._started.result().stop)

    def _cut(self) -> None:
        connections: Any = [*self.server_state.connections]
        if connections:
            logger.warning("%d connections cut (serving.drain_timeout_s)", len(connections))
        for connection in connections:
            connection.transport.abort()

    def _close_stalled(self) -> None:
        """Close connections that wait too long for a head or for their client to read."""
        now_s, stalled = time.monotonic(), {}
        connections: Any = self.server_state.connections
        for connection in connections:
            is_idle = connection.cycle is None or connection.cycle.response_complete
            if unread_bytes := connection.transport.get_write_buffer_size():
                limit_s = self._limits.reader_timeout_s
            elif is_idle and connection.timeout_keep_alive_task is None:
                limit_s = self._limits.body_timeout_s
            else:
                continue
            before, since_s = self._stalled.get(connection, (None, now_s))
            since_s = since_s if before == unread_bytes else now_s
            stalled[connection] = unread_bytes, since_s
            if now_s - since_s > limit_s:
                connection.transport.abort()
        self._stalled = stalled


def _protocol() -> Any:
    """Return the parser of HTTP/1.1: httptools takes a fifth of h11's time."""
    protocol: Any
    try:
        from trtllm_truss.cli.http_connection import Connection as protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as protocol
    limit_connections(protocol)
    return protocol


def _listen(host: str, port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    try:
        return [
            stack.enter_context(socket.create_server(address, family=family, backlog=_BACKLOG))
            for family, address in addresses(host, port)
        ]
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host!r}, port {port}: {reason}.") from None


def _choose_metrics() -> None:
    """Export only the families of `metrics.exposed`, as Truss's server does."""
    for collector in (
        process_collector.PROCESS_COLLECTOR,
        platform_collector.PLATFORM_COLLECTOR,
        gc_collector.GC_COLLECTOR,
    ):
        REGISTRY.unregister(collector)
    disable_created_metrics()  # type: ignore[no-untyped-call]
