"""Run Truss's `main.py` on one address, with a guard in front of the application.

Truss's server listens on every address, as a container must, requires no key, and lacks the routes
by which clients look for a model and for its health. Usage, in the folder of `main.py`:
`python local_main.py HOST main.py LAID_OUT`. The program is run once the file LAID_OUT exists, and
its libraries are imported before. Imports nothing of this package: the served Truss may bundle
another version of it.
"""

from __future__ import annotations

import gc
import ipaddress
import json
import os
import runpy
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_RELOAD_PATH = "/hot-reload"
_MODELS_PATH = "/v1/models"
_HEALTH_PATHS = ("/health", "/health/ready")
_READY_PATH = "/v1/models/model"
"""Truss's readiness route."""

_OPENAI_PATHS = tuple(f"/v1/{name}" for name in ("chat/completions", "completions", "responses"))

_OBJECTS_BEFORE_COLLECTION = 100_000
"""Imports make nearly as many and leave little garbage: collections are a tenth of their time."""

_LIBRARIES = (
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.on"),
    *("yaml", "fastapi", "prometheus_client", "opentelemetry.sdk.trace"),
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
"""Truss's server imports them in a third of a second, as long as the layout takes."""

_TICK_S = 0.02

Refusal = tuple[int, str, str]
"""Status, code and message."""


def is_loopback(host: str) -> bool:
    """Return whether a name or address is loopback, as `settings.addresses`, for the package."""
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
    """Return whether a host resolves to loopback addresses only."""
    return all(is_loopback(address[0]) for _, address in addresses(host, 0))


class Guard:
    """ASGI middleware that rejects requests a local server should not answer, and lists the model.

    Rejects hot reloads of the model's code. On loopback, also rejects requests with the `Host` of
    another machine, which a browser sends after DNS rebinding, or with the `Origin` of another
    machine's page.

    Args:
        app: Truss's application.
        host: the listening address or name.
        model_name: the id that `GET /v1/models` lists.
    """

    def __init__(self, app: ASGIApp, host: str, model_name: str = "model") -> None:
        self._app = app
        self._model = {
            "id": model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "trtllm-truss",
        }
        path = f"{_MODELS_PATH}/{model_name}"
        self._model_path = None if path == _READY_PATH else path
        self._host = host.lower()
        self._is_private = is_private(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None and scope["type"] == "http" and scope["method"] == "GET":
            if scope["path"] == _MODELS_PATH:
                await _send_json(send, 200, {"object": "list", "data": [self._model]})
                return
            if scope["path"] == self._model_path:
                await _send_json(send, 200, self._model)
                return
            if scope["path"] in _HEALTH_PATHS:
                scope = {**scope, "path": _READY_PATH, "raw_path": _READY_PATH.encode()}
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await _send_json(send, refusal[0], _error_body(scope["path"], refusal))

    def _refusal(self, scope: Scope) -> Refusal | None:
        if scope["path"].rstrip("/") == _RELOAD_PATH:
            return 404, "not_found", f"{_RELOAD_PATH} is disabled here; restart the server."
        if not self._is_private:
            return None
        for name, value in scope["headers"]:
            text = value.decode("latin-1")
            if name == b"host" and not self._is_local(f"//{text}"):
                return (
                    *(421, "misdirected_request"),
                    f"the Host header is {text!r}; this server accepts only localhost. "
                    "`trtllm-truss serve --host` opens it to other hosts.",
                )
            if name == b"origin" and not self._is_local(text):
                return (
                    *(403, "forbidden"),
                    f"the Origin header is {text!r}; this server accepts only pages of this "
                    "machine.",
                )
        return None

    def _is_local(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return is_loopback(host) or host == self._host


def _error_body(path: str, refusal: Refusal) -> dict[str, Any]:
    """Build the body of a refusal in the format of the route's protocol."""
    status, code, message = refusal
    if path == "/invocations":
        return {"code": status, "error": message}
    if path == "/v1/messages":
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    error = {"code": code, "message": message, "param": None}
    if path in _OPENAI_PATHS:
        error["type"] = "invalid_request_error"
    return {"error": error}


async def _send_json(send: Send, status: int, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def main(host: str, program: str, laid_out: str) -> None:
    """Run Truss's program on `host` instead of every address."""
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as `python main.py` has it
    for name in _LIBRARIES:
        with suppress(ImportError):  # Truss's program reports it, if it needs this one
            import_module(name)
    while not Path(laid_out).exists():
        time.sleep(_TICK_S)
    invalidate_caches()  # of the folders that were filled meanwhile
    import uvicorn
    import yaml

    config = yaml.safe_load(Path("config.yaml").read_text(encoding="utf-8"))
    model_name = str(config.get("model_name") or "model")

    class LocalConfig(uvicorn.Config):
        def __init__(self, app: ASGIApp, **options: Any) -> None:
            guard = Guard(app, host, model_name)
            super().__init__(guard, **{**options, "host": host})

    uvicorn.Config = LocalConfig  # type: ignore[misc, assignment]
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
