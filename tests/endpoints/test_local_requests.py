"""Hosts and origins that a server on loopback answers."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.local_requests import LocalGuard, host_of


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:8080", "localhost"),
        ("localhost:", "localhost"),
        ("[::1]:8080", "::1"),
        ("", ""),
        ("evil@localhost", None),
        ("localhost@evil", None),
        ("localhost/evil", None),
        ("localhost#evil", None),
        ("localhost\\evil", None),
        ("localhost, evil", None),
        ("localhost:1:2", None),
        ("localhost\u0661", None),
        ("[localhost]", None),
    ],
)
def test_the_host_of_an_authority(authority: str, host: str | None) -> None:
    assert host_of(authority) == host


async def status_of(name: str, value: str, kind: str = "http") -> Any:
    """Return the status that the guard answers with; 200 where it asks the application."""
    sent: list[dict[str, Any]] = []

    async def application(*_: Any) -> None:
        sent.append({"status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": "/", "headers": [(name.encode(), value.encode("latin-1"))]}
    await LocalGuard(application, "127.0.0.1")(scope, send, send)  # type: ignore[arg-type]
    return sent[0].get("status", sent[0].get("code"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil@localhost", 421),
        ("localhost/evil", 421),
        ("localhost, evil", 421),
        ("0x7f.1", 421),
        ("", 421),
    ],
)
async def test_hosts(host: str, status: int) -> None:
    assert await status_of("host", host) == status
    assert await status_of("host", host, "websocket") == (200 if status == 200 else 1008)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("http://evil@localhost", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
    ],
)
async def test_origins(origin: str, status: int) -> None:
    assert await status_of("origin", origin) == status
