"""A server that runs and can be asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens, on loopback.

    Attributes:
        pid: of the process from which everything that it runs descends.
        port: HTTP.
        path: what answers requests there.
        grpc_port: Triton's; 0 where it is not reached from outside.
    """

    pid: int
    port: int
    path: str
    grpc_port: int = 0
