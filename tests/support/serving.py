"""Small servers of the standard library, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer


class Serving:
    """A running server; closing it does not wait for the default poll of 0.5 s."""

    def __init__(self, server: BaseServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        self._thread.start()

    def close(self) -> None:
        """Stop the server; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Run a server during the block."""
    thread = Serving(server)
    try:
        yield
    finally:
        thread.close()
