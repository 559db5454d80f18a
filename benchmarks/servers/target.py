"""The address of a running server."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.observability.status import Status, StatusReader


@dataclass(frozen=True, slots=True)
class Target:
    """A server on loopback.

    Attributes:
        pid: process id of the ancestor of all its processes.
        port: of HTTP.
        path: route of requests.
        grpc_port: Triton's; 0 if it is internal.
        started_in_s: time from the start of the process to readiness; 0 if not timed.
        status_file: status of `serve`; None for another program.
    """

    pid: int
    port: int
    path: str
    grpc_port: int = 0
    started_in_s: float = 0.0
    status_file: StatusReader | None = None

    @property
    def status(self) -> Status:
        """Return the status reported by `serve`."""
        assert self.status_file is not None
        return self.status_file.read() or Status()
