"""The console of `serve` on its own port."""

from __future__ import annotations

import socket
import threading
from functools import partial
from types import TracebackType

import uvicorn

from trtllm_truss.errors import SettingsError
from trtllm_truss.guard import BodyGuard
from trtllm_truss.local_requests import LocalGuard
from trtllm_truss.settings.model import Serving
from trtllm_truss.triton.server.ports import LOOPBACK
from trtllm_workbench.cli.truss_server import TrussServer
from trtllm_workbench.console.app import ConsoleApp, Upstream
from trtllm_workbench.console.pulse import Pulse

_GRACE_S = 1


class ConsoleServer:
    """Serves the console on loopback while entered, from a thread.

    Args:
        port: on 127.0.0.1, opened on entry.
        model_name: the name in config.yaml.
        pulse: the vital signs.
        server: Truss's own server; it need not run yet.
        limits: the limits of bodies.
    """

    def __init__(
        self, port: int, model_name: str, pulse: Pulse, server: TrussServer, limits: Serving
    ) -> None:
        self._port = port
        upstream = Upstream(server.connect_host, server.port)
        app = ConsoleApp(pulse, upstream, model_name, server.root_url)
        self._app = LocalGuard(partial(BodyGuard(limits).run, app), LOOPBACK)

    @property
    def url(self) -> str:
        return f"http://localhost:{self._port}/"

    def __enter__(self) -> ConsoleServer:
        try:
            listening = socket.create_server((LOOPBACK, self._port))
        except OSError as error:
            raise SettingsError(
                f"--console is {self._port}; that port cannot be used "
                f"({error.strerror or error}). Choose another one."
            ) from None
        self._listening = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                access_log=False,
                http="h11",
                lifespan="off",
                log_config=None,
                server_header=False,
                log_level="critical",  # a broken connection is no news; the page shows it
                loop="asyncio",
                timeout_graceful_shutdown=_GRACE_S,
                ws="none",
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="console", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
