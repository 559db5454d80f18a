"""A Hugging Face Hub for tests: its HTTP API on loopback, with faults on demand and a log.

Written from the behaviour of `huggingface_hub`'s own requests and of hf.co's answers: 401 or 404
with `X-Error-Code: RepoNotFound` for what does not exist and what may not be seen, 403
`GatedRepo`, 404 `RevisionNotFound` and `EntryNotFound`, 401 for an unknown token, large files
behind a redirect to another host. Real clients talk to it with `HF_ENDPOINT` set to `url`; those
that upload need `HF_HUB_DISABLE_XET=1` too, for it has no Xet storage.
"""

from __future__ import annotations

import contextlib
import fnmatch
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.fakes.hub.repositories import Account, Repository
from tests.support.serving import Serving

SIGNATURE = "0a1b2c3d4e5f"
"""Of every URL on the host of large files: a secret for as long as it is valid."""


@dataclass
class Fault:
    """A fault of requests whose path matches.

    Attributes:
        path: a pattern for the path below the server.
        times: how often it happens.
        status: answered in place of the real answer.
        headers: of that answer; added to the real one where there is no status.
        cut_at: share of the body after which the connection is closed.
        short: whether the answer's length says that this was all.
        corrupt: whether the last byte is another one.
        extra_bytes: sent after the body, and counted in the answer's length.
        edit: returns what is answered in place of some JSON.
    """

    path: str
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_at: float | None = None
    short: bool = False
    corrupt: bool = False
    extra_bytes: int = 0
    edit: Callable[[Any], Any] | None = None


@dataclass
class Request:
    """One request, once it was answered.

    Attributes:
        token: what it carried.
        start: the first byte that a range asked for.
        last: the last one, if it named one.
        status: of the answer; 0 while it is being given.
        sent: bytes of its body.
    """

    method: str
    path: str
    token: str | None
    start: int
    last: int | None = None
    status: int = 0
    sent: int = 0


class HubServer:
    """The Hub. Everything may be changed while it runs."""

    def __init__(self) -> None:
        from tests.fakes.hub.handler import HubHandler

        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, Account] = {}
        self.uploads: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.any_commit = False  # whether files are served below any commit, even one that climbs
        self.knows_no_ranges = False  # whether every answer is the whole file
        self.bytes_per_s: float | None = None
        self.before_sending: Callable[[Request], object] = lambda request: None
        """Called before each piece of a body, the first one included; it may wait."""
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.files_url = f"http://localhost:{self.port}"  # another host, as hf.co's CDN is
        self._serving = Serving(self._server)

    def close(self) -> None:
        """Ends the server and every connection to it; may be called twice."""
        self._serving.close()
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point a client's process at this server."""
        return {"HF_ENDPOINT": self.url}

    def add(
        self,
        name: str,
        files: Mapping[str, bytes],
        *,
        private: bool = False,
        gated: bool = False,
    ) -> Repository:
        """A new repository with one commit."""
        repository = Repository(name, private, gated)
        repository.commit(files)
        self.repositories[name] = repository
        return repository

    def add_token(self, token: str, name: str = "user", **rights: frozenset[str]) -> str:
        self.tokens[token] = Account(name, **rights)
        return token

    def fault(self, path: str, **fault: object) -> None:
        """Makes the next request for a path fail; see `Fault`."""
        self.faults.append(Fault(path, **fault))  # type: ignore[arg-type]

    def take_fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fnmatch.fnmatch(path, fault.path):
                    fault.times -= 1
                    return fault
        return None

    def asked_for(self, pattern: str, method: str = "GET") -> list[Request]:
        """The requests so far whose path matches."""
        with self.lock:
            return [
                request
                for request in self.requests
                if request.method == method and fnmatch.fnmatch(request.path, pattern)
            ]

    def sent(self, pattern: str = "*") -> int:
        """Bytes of bodies sent so far for a path."""
        return sum(request.sent for request in self.asked_for(pattern))

    def forget(self) -> None:
        """Empties the log."""
        with self.lock:
            self.requests.clear()

    def pace(self, count: int) -> None:
        if self.bytes_per_s:
            time.sleep(count / self.bytes_per_s)


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    hub = HubServer()
    try:
        yield hub
    finally:
        hub.close()
