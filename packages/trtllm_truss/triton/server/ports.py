"""Ports of a Triton server on loopback."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from trtllm_truss.local_requests import LOOPBACK


@dataclass(frozen=True, slots=True)
class Ports:
    """The server's ports, all on loopback; `http` is None while that endpoint is closed.

    `mpi` is the port on which `mpirun` listens while it starts several ranks.
    """

    grpc: int
    http: int | None
    metrics: int
    mpi: int


def free_ports(http_port: int | None = None, grpc_port: int | None = None) -> Ports:
    """Return free ports, all chosen at once by the kernel.

    Another program may take them before the server opens them; the caller must be ready to retry
    with others.

    Args:
        http_port: the HTTP port, free or not; 0 for any free one, None to keep HTTP closed.
        grpc_port: the gRPC port, free or not; None for any free one.

    Raises:
        OSError: the machine has no free port.
    """
    grpc, http, metrics, mpi = unused_ports(4)
    return Ports(grpc_port or grpc, http if http_port == 0 else http_port, metrics, mpi)


def unused_ports(count: int) -> list[int]:
    """Return distinct TCP ports that are unused on loopback at this moment.

    Raises:
        OSError: the machine has no free port.
    """
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
