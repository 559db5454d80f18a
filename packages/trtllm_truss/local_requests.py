"""Accept requests only from this machine's programs and pages while a server listens on loopback.

Imports only the standard library: `serve` loads this file next to a Truss that bundles another
version of this package.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
PREDICT = "/v1/models/model:predict"
_RELOAD_PATH = "/hot-reload"
_OPENAI_PATHS = "/v1/", "/tokenize", "/detokenize"
_OPENAI_ROUTES = ("chat/completions", "completions", "embeddings", "models", "responses")
_MESSAGES = "/v1/messages", "/v1/v1/messages", "/messages"
"""The API's route, and the paths that clients with a wrong base URL request."""
_MESSAGES_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "overloaded_error",
}
_SERVERS_FAULT = 500

Refusal = tuple[int, str, str]
"""Status, code and message."""

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.~!$&'()*+,;=%-]*))(?::[0-9]*)?", re.ASCII)
"""RFC 3986, 3.2, without user information, which RFC 9110, 4.2.4, forbids in requests."""


def host_of(authority: str) -> str | None:
    """Return the host of a `Host` header; None if the header is invalid."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else found[1] or found[2]


def is_loopback(host: str) -> bool:
    """Return True for a loopback name or address, without resolving it."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Resolve a host to the addresses to listen on.

    Raises:
        OSError: the name does not resolve.
    """
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = socket.getaddrinfo(host, port, type=kind, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


def is_private(host: str) -> bool:
    """Return True if a host resolves to loopback addresses only."""
    return all(is_loopback(address[0]) for _, address in addresses(host, 0))


class LocalGuard:
    """ASGI middleware that rejects requests a local server should not answer.

    Rejects hot reloads of the model's code. On loopback, it also rejects requests with another
    machine's `Host`, which a browser sends after DNS rebinding, or with the `Origin` of another
    machine's page.

    Args:
        host: the listening address or name.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host.lower()
        self._is_private = is_private(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send_json(send, refusal[0], error_body(scope["path"], *refusal))

    def _refusal(self, scope: Scope) -> Refusal | None:
        if scope["path"].rstrip("/") == _RELOAD_PATH:
            return 404, "not_found", f"{_RELOAD_PATH} is disabled here; restart the server."
        if not self._is_private:
            return None
        for name, value in scope["headers"]:
            text = value.decode("latin-1")
            if name == b"host" and not self._is_local(text):
                return (
                    *(421, "misdirected_request"),
                    f"the Host header is {text!r}; this server accepts only localhost. "
                    "`trtllm-truss serve --host` opens it to other hosts.",
                )
            if name == b"origin" and not self._is_local(text.rpartition("://")[2]):
                return (
                    *(403, "forbidden"),
                    f"the Origin header is {text!r}; this server accepts only pages of this "
                    "machine.",
                )
        return None

    def _is_local(self, authority: str) -> bool:
        host = (host_of(authority) or "").lower()
        return is_loopback(host) or host == self._host


def error_body(path: str, status: int, code: str, message: str) -> dict[str, Any]:
    """Build the error body of a refusal before any endpoint, in the format of the route."""
    if path == "/invocations":
        return {"code": status, "error": message}
    if path.startswith(_MESSAGES):
        kind = _MESSAGES_KINDS.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    error = {"code": code, "message": message, "param": None}
    if not path.startswith((PREDICT, "/predict")) and (
        path.startswith(_OPENAI_PATHS) or path.strip("/") in _OPENAI_ROUTES
    ):
        error["type"] = "invalid_request_error" if status < _SERVERS_FAULT else "server_error"
    return {"error": error}


async def send_json(
    send: Send, status: int, value: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send a whole response."""
    body = json.dumps(value).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    head += headers or []
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
