"""Ways to send hostile bodies: one at a time, many at once, and by clients that disconnect."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

AT_ONCE = 12
REFUSED_UNDER_LOAD = frozenset({429, 503})

_LIMIT_S = 600.0
_LONGEST_WAIT_S = 0.3
_ABORT = struct.pack("ii", 1, 0)
_RECEIVED_BYTES = 4096
_SENT_BYTES = 1 << 16

Moment = Literal["sending", "waiting", "receiving"]
MOMENTS: tuple[Moment, ...] = ("sending", "waiting", "receiving")


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer."""

    status: int
    content: bytes


def post(port: int, route: str, body: bytes) -> Reply:
    """Send one request over its own connection.

    Raises:
        OSError: the connection ended early.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
    try:
        with suppress(ConnectionError):  # a server may answer before it has read everything
            connection.request("POST", route, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return Reply(answer.status, answer.read())
    finally:
        connection.close()


def post_at_once(port: int, requests: Sequence[tuple[str, bytes]]) -> list[Reply]:
    """Send requests at the same time, each over its own connection; keep their order."""
    with ThreadPoolExecutor(max(1, len(requests))) as pool:
        return list(pool.map(lambda request: post(port, *request), requests))


def leave(port: int, route: str, body: bytes, moment: Moment, chance: random.Random) -> None:
    """Send one request and close its connection at a random byte.

    Args:
        port: port of the server.
        route: route of the request.
        body: body of the request.
        moment: while the body is sent, while the answer is awaited, or while it is received.
        chance: chooses the byte, and whether the connection is aborted (RST) or closed (FIN).
    """
    request = _request(route, body)
    length = chance.randrange(len(request)) if moment == "sending" else len(request)
    with socket.create_connection(("127.0.0.1", port), _LIMIT_S) as client:
        with suppress(ConnectionError):  # a server may close first
            view = memoryview(request)[:length]
            for start in range(0, length, _SENT_BYTES):
                client.sendall(view[start : start + _SENT_BYTES])
            if moment == "waiting":
                time.sleep(chance.uniform(0, _LONGEST_WAIT_S))
            if moment == "receiving":
                _receive(client, chance.randrange(1, _RECEIVED_BYTES))
        if chance.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)


def leave_at_once(port: int, requests: Iterable[tuple[str, bytes, Moment, str]]) -> None:
    """Abandon requests, `AT_ONCE` at the same time.

    The last element of each seeds its random choices.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for leaving in [
            pool.submit(leave, port, route, body, moment, random.Random(seed))
            for route, body, moment, seed in requests
        ]:
            leaving.result()


def _request(route: str, body: bytes) -> bytes:
    head = (
        f"POST {route} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _receive(client: socket.socket, count: int) -> None:
    while count > 0 and (received := client.recv(count)):
        count -= len(received)
