"""Ports of a Triton server on loopback."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

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
    """Return free ports, all chosen at once.

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

    They lie below those that the kernel gives to outgoing connections, any of which could take one
    before it is opened: Open MPI does not try another, and a program that spawns workers by it then
    hangs (PRRTE in Open MPI 5.0.11, oob_tcp_component.c, line 582).

    Raises:
        OSError: the machine has no free port.
    """
    candidates = (
        random.sample(_OWN_PORTS, _TRIES) if _first_outgoing_port() >= _OWN_PORTS.stop else []
    )
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            _bind(each, candidates)
        return [each.getsockname()[1] for each in sockets]


_OWN_PORTS = range(20_000, 30_000)  # from there on Kubernetes has its node ports
_TRIES = 200


def _bind(one: socket.socket, candidates: list[int]) -> None:
    while candidates:
        with suppress(OSError):
            one.bind((LOOPBACK, candidates.pop()))
            return
    one.bind((LOOPBACK, 0))


def _first_outgoing_port() -> int:
    """Return the lowest port of outgoing connections (`ip_local_port_range`), 0 if unknown."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
