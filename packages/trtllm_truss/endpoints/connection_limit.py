"""Limit a server's connections to fewer than its open files.

Each connection takes a descriptor, and the server needs some itself: to restart Triton, to check a
guide, to reach the engine. Near the limit an idle connection is closed for each new one.

It relies on these parts of uvicorn's protocols (h11_impl.py and httptools_impl.py, 0.54):
`connection_made`, `connections`, which is one set per server, `cycle` and `transport`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from trtllm_truss.processes.limits import raise_file_limit

RESERVE = 128
"""Descriptors reserved besides connections: the server uses fifty, and a start of Triton ten."""

_LEAST = 16
_QUIET_S = 60.0
_LIMITED = "limit"
_ACCEPT_ERROR = "socket.accept() out of system resource"

logger = logging.getLogger(__name__)


class Cycle(Protocol):
    """A request and its response."""

    response_complete: bool


class Connection(Protocol):
    """A connection of uvicorn."""

    connections: Collection[Any]
    cycle: Cycle | None
    transport: Any


class ConnectionLimit:
    """Closes idle connections, oldest first.

    Those that have not had a request yet come before others.

    If all others are in use, the new connection itself is closed. Work per connection is constant
    on average.

    Args:
        most: maximum number of connections.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._silent: deque[Connection] = deque()
        self._used: deque[Connection] = deque()
        self._closed = 0
        self._told_s: float | None = None

    def add(self, new: Connection) -> None:
        """Register a new connection, and close one if there are too many."""
        if len(new.connections) > self._most:
            closed = self._idle_one(new.connections) or new
            closed.transport.abort()
            self._report()
            if closed is new:
                return
        self._silent.append(new)
        if len(self._silent) + len(self._used) > 2 * len(new.connections) + self._most:
            self._silent = deque(each for each in self._silent if each in new.connections)
            self._used = deque(each for each in self._used if each in new.connections)

    def _idle_one(self, alive: Collection[Any]) -> Connection | None:
        while self._silent:
            connection = self._silent.popleft()
            if connection in alive and not connection.transport.is_closing():
                if connection.cycle is None:
                    return connection
                self._used.append(connection)
        for _ in range(len(self._used)):
            connection = self._used.popleft()
            if connection in alive and not connection.transport.is_closing():
                if connection.cycle is None or connection.cycle.response_complete:
                    return connection
                self._used.append(connection)
        return None

    def _report(self) -> None:
        """Log the closed connections, at most once a minute."""
        self._closed += 1
        now_s = self._clock()
        if self._told_s is None or now_s >= self._told_s + _QUIET_S:
            logger.warning(
                "%d connections closed, the longest idle first: the limit of open files allows %d; "
                "raise it (ulimit -n), or limit connections in front of the server.",
                self._closed,
                self._most,
            )
            self._closed, self._told_s = 0, now_s


class _QuietAccepts(logging.Filter):
    """Passes asyncio's error about a lack of descriptors on at most once a minute.

    Up to Python 3.12, `_accept_connection` of asyncio/selector_events.py continues after that error
    and logs it with a traceback for each place in the backlog: 2,048 times a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told_s: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_ACCEPT_ERROR):
            return True
        now_s = self._clock()
        if self._told_s is not None and now_s < self._told_s + _QUIET_S:
            return False
        self._told_s = now_s
        return True


def limit_connections(protocol: Any) -> None:
    """Limit the connections of one of uvicorn's protocol classes by the allowed open files."""
    log = logging.getLogger("asyncio")
    if not any(isinstance(each, _QuietAccepts) for each in log.filters):
        log.addFilter(_QuietAccepts())
    limit = ConnectionLimit(max(_LEAST, raise_file_limit() - RESERVE))
    unlimited = getattr(protocol.connection_made, _LIMITED, protocol.connection_made)

    def connection_made(self: Any, transport: Any) -> None:
        unlimited(self, transport)
        limit.add(self)

    setattr(connection_made, _LIMITED, unlimited)
    protocol.connection_made = connection_made


_TRUSS_PROTOCOL = "uvicorn.protocols.http.h11_impl"


def limit_connections_of_truss() -> None:
    """Limit the connections of the running Truss server, whose parser is h11 (0.18.35)."""
    protocol = getattr(sys.modules.get(_TRUSS_PROTOCOL), "H11Protocol", None)
    if protocol is None:
        logger.warning(
            "Truss's server uses another parser than h11: its connections are not limited"
        )
    else:
        limit_connections(protocol)
