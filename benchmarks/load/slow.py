"""Clients that request long answers; half read one byte per second, half read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import sys

from benchmarks.load.http import request_bytes
from benchmarks.load.record import Record
from benchmarks.load.spec import LoadSpec

_RECEIVE_BUFFER_BYTES = 4096
_ESTABLISHED = 1  # tcp_states.h
_READ_EVERY_S = 1.0


async def run_slow(spec: LoadSpec, record: Record) -> None:
    """Open `spec.streams` connections and keep them until standard input ends.

    A connection that the server closed by then counts as `cut`, another one as `200`.
    """
    loop = asyncio.get_running_loop()
    closed = loop.run_in_executor(None, sys.stdin.read)
    requests = itertools.cycle([request_bytes(spec.path, body) for body in spec.bodies])
    clients = [await _open(spec.port, next(requests)) for _ in range(spec.streams)]
    while not closed.done():
        for client in clients[::2]:
            with contextlib.suppress(OSError):
                client.recv(1)
        await asyncio.wait({closed}, timeout=_READ_EVERY_S)
    for client in clients:
        if _is_established(client):
            record.add(0.0, (), 0)
        else:
            record.add_failure("cut")
        client.close()


async def _open(port: int, request: bytes) -> socket.socket:
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, request)
    return client


def _is_established(client: socket.socket) -> bool:
    """Return whether the server has not closed the connection; received data may be unread."""
    (state,) = struct.unpack("B", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    return bool(state == _ESTABLISHED)
