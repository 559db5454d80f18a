"""Replace Truss's watcher for disconnects, which keeps each request alive.

`_install_disconnect_watcher` of Truss's `truss_server.py` (0.18.35) stores a closure over the
request in the request's own state. Without a garbage collection this cycle keeps the body of a
client that leaves before Truss calls the model.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

_MODULE = "truss_server"
_FUNCTION = "_install_disconnect_watcher"
_POLL_S = 1.0

logger = logging.getLogger(__name__)


def replace_watcher() -> None:
    """Replace the function of the running Truss server, if it has one."""
    server = sys.modules.get(_MODULE)
    if hasattr(server, _FUNCTION):
        setattr(server, _FUNCTION, _install)


def _install(request: Request) -> None:
    request.state.watch_disconnect = _Watcher(request)


class _Watcher:
    """`with request.state.watch_disconnect() as gone:` sets the event when the client leaves.

    Usable in any thread.
    """

    __slots__ = ("_loop", "_request")

    def __init__(self, request: Request) -> None:
        self._loop = asyncio.get_running_loop()
        self._request = weakref.ref(request)

    @contextmanager
    def __call__(self) -> Iterator[threading.Event]:
        gone = threading.Event()
        watching = asyncio.run_coroutine_threadsafe(_watch(self._request, gone), self._loop)
        try:
            yield gone
        finally:
            watching.cancel()


async def _watch(reference: weakref.ref[Request], gone: threading.Event) -> None:
    try:
        while (request := reference()) is not None and not await request.is_disconnected():
            del request
            await asyncio.sleep(_POLL_S)
        gone.set()
    except Exception:
        logger.exception("cannot watch for the client's disconnect")
