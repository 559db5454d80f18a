"""Connections near the limit of open files."""

from __future__ import annotations

import http.client
import logging
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.waiting import settles

from trtllm_truss.endpoints.connection_limit import RESERVE, ConnectionLimit, limit_connections


@dataclass(eq=False)
class Cycle:
    response_complete: bool = False


@dataclass(eq=False)
class Fake:
    """A connection of uvicorn as the limit sees it."""

    connections: set[Any]
    cycle: Cycle | None = None
    transport: Any = None
    aborted: bool = False

    def __post_init__(self) -> None:
        self.transport = self

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Server:
    def __init__(self, most: int) -> None:
        self.now_s = 0.0
        self.alive: set[Any] = set()
        self.limit = ConnectionLimit(most, lambda: self.now_s)

    def accept(self, cycle: Cycle | None = None) -> Fake:
        new = Fake(self.alive, cycle)
        self.alive.add(new)
        self.limit.add(new)
        return new

    def lose(self) -> None:
        """Drop closed connections, as a round of the event loop does."""
        self.alive -= {each for each in self.alive if each.aborted}


def test_the_oldest_silent_connection_goes_first() -> None:
    server = Server(4)
    used = server.accept(Cycle(response_complete=True))
    busy = server.accept(Cycle())
    silent = [server.accept() for _ in range(2)]
    new = [server.accept() for _ in range(2)]
    assert [each.aborted for each in (*silent, *new, used, busy)] == [
        *(True, True),
        *(False, False),
        *(False, False),
    ]


def test_idle_connections_go_before_a_new_one_and_busy_ones_stay() -> None:
    server = Server(3)
    busy = [server.accept(Cycle()) for _ in range(2)]
    used = server.accept(Cycle(response_complete=True))
    first = server.accept()
    assert used.aborted
    server.lose()
    first.cycle = Cycle()
    last = server.accept()
    assert last.aborted
    assert not any(each.aborted for each in (*busy, first))
    server.lose()
    busy[0].cycle = Cycle(response_complete=True)
    assert not server.accept().aborted
    assert busy[0].aborted


def test_a_burst_within_one_round_keeps_the_newest() -> None:
    server = Server(100)
    made = [server.accept() for _ in range(400)]
    assert [each.aborted for each in made] == [True] * 300 + [False] * 100


def test_connections_that_ended_are_forgotten() -> None:
    server = Server(10)
    for _ in range(1000):
        server.accept().abort()
        server.lose()
    assert len(server.limit._silent) + len(server.limit._used) < 100


def test_the_log_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(2)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            server.accept()
        assert [record.getMessage()[:20] for record in caplog.records] == ["1 connections closed"]
        server.now_s = 61
        server.accept()
    assert caplog.records[1].getMessage().startswith("8 connections closed")
    assert "ulimit -n" in caplog.records[1].getMessage()


def test_a_protocol_is_limited_once() -> None:
    class Uvicorns:
        connections: ClassVar[set[Any]] = set()

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.connections.add(self)

    made = Uvicorns.connection_made
    limit_connections(Uvicorns)
    limit_connections(Uvicorns)
    assert vars(Uvicorns.connection_made)["limit"] is made
    Uvicorns().connection_made(None)
    assert len(Uvicorns.connections) == 1


def test_errors_of_accept_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The log of the real loop, whose accept finds no descriptor."""
    code = (
        "import asyncio, resource, socket\n"
        "from trtllm_truss.endpoints.connection_limit import limit_connections\n"
        "from uvicorn.protocols.http.h11_impl import H11Protocol\n"
        "async def run():\n"
        "    made = []\n"
        "    class Kept(asyncio.Protocol):\n"
        "        def connection_made(self, transport): made.append(transport)\n"
        "    server = await asyncio.get_running_loop().create_server(Kept, '127.0.0.1', 0)\n"
        "    address = server.sockets[0].getsockname()\n"
        "    clients = [socket.create_connection(address) for _ in range(40)]\n"
        "    await asyncio.sleep(0.1)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "limit_connections(H11Protocol)\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.count("socket.accept() out of system resource") == 1, done.stderr


SERVER = """
import resource, sys
import uvicorn
from trtllm_truss.endpoints.connection_limit import limit_connections
if sys.argv[1] == "own":
    from trtllm_truss.cli.http_connection import Connection as protocol
else:
    from uvicorn.protocols.http.h11_impl import H11Protocol as protocol
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
limit_connections(protocol)

async def application(scope, receive, send):
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    await send(head)
    await send({"type": "http.response.body", "body": b"ok"})

config = uvicorn.Config(
    application, port=0, http=protocol, loop=sys.argv[2], lifespan="off", backlog=4096
)
server = uvicorn.Server(config)
startup = uvicorn.Server.startup

async def started(self, sockets=None):
    await startup(self, sockets)
    print(self.servers[0].sockets[0].getsockname()[1], flush=True)

uvicorn.Server.startup = started
server.run()
"""


@pytest.mark.parametrize(("protocol", "loop"), [("own", "uvloop"), ("truss", "asyncio")])
def test_a_request_is_answered_beside_idle_connections(protocol: str, loop: str) -> None:
    """A server with 256 open files, and 400 connections that send nothing."""
    command = [sys.executable, "-c", SERVER, protocol, loop]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        files = Path(f"/proc/{server.pid}/fd")
        with ExitStack() as stack:
            stack.callback(server.terminate)
            for _ in range(400):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            assert settles(lambda: asked(port) == b"ok")
            assert settles(lambda: len([*files.iterdir()]) <= 256 - RESERVE + 30)


def asked(port: int) -> bytes:
    """Return the answer to a request; empty if the connection was closed."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", "/")
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
