"""The address of a running server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A server on loopback.

    Attributes:
        pid: of the ancestor of all its processes.
        port: of HTTP.
        path: the route of requests.
        grpc_port: Triton's; 0 if it is internal.
    """

    pid: int
    port: int
    path: str
    grpc_port: int = 0
