"""The console's page, its figures, and access to the public API, on a separate port.

Each request to that API uses a separate connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import uvicorn

from trtllm_truss.endpoints.guard import REFUSAL, BodyGuard
from trtllm_truss.errors import EngineUnavailable, SettingsError
from trtllm_truss.local_requests import LOOPBACK, LocalGuard
from trtllm_truss.settings.model import Serving
from trtllm_workbench.console.pulse import Pulse

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

Headers = Sequence[tuple[bytes, bytes]]
_CONNECT_TIMEOUT_S = 10.0
_GRACE_S = 1


class PageReply:
    """A response; its body can be read once."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            EngineUnavailable: the connection ended before the response did.
        """
        with _failures():
            async for part in self._response.aiter_raw():
                yield part


class Upstream:
    """The served API.

    Args:
        host: its address.
    """

    def __init__(self, host: str, port: int) -> None:
        self._root = httpx.URL(scheme="http", host=host, port=port)
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=False,  # noqa: S501 - no TLS here; certificates take 0.3 s to read
        )

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncGenerator[PageReply, None]:
        """Send a request and yield its reply; leaving the block closes the connection.

        The server treats this as a disconnect and stops the engine's request.

        Raises:
            EngineUnavailable: the server is unreachable or disconnected.
        """
        own = [(b"host", b"localhost"), (b"connection", b"close")]
        url = self._root.copy_with(path=path)
        request = httpx.Request(method, url, headers=[*headers, *own], content=body)
        with _failures():
            response = await self._client.send(request, stream=True)
        try:
            yield PageReply(response)
        finally:
            await response.aclose()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise EngineUnavailable("the server does not respond; see its terminal.") from error
    except httpx.TransportError as error:
        raise EngineUnavailable("the server disconnected; see its terminal.") from error


_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", b"image/svg+xml"),
    **{f"/{name}": (name, b"text/javascript; charset=utf-8")
       for name in ("page.js", "chat.js", "pulse.js", "snippets.js")},
}  # fmt: skip
FORWARDED = {f"/v1/{name}" for name in ("chat/completions", "completions", "messages",
                                        "models/model:predict", "responses")}  # fmt: skip
"""POST routes that are forwarded.

Everything else on the server, such as its metrics, stays closed.
"""

_SENT_ON = (b"accept", b"content-type")
_SENT_BACK = (b"content-type", b"retry-after", b"x-request-id")
_SECURITY: Headers = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
_REFRESH_S = 0.9
"""Several pages share one scrape."""

_SCRAPE_TIMEOUT_S = 5.0


class ClientGone(Exception):
    """The browser has closed the connection, or must be disconnected."""


class ConsoleApp:
    """Serves the page, `/pulse`, and the routes in `FORWARDED`.

    Place guards in front of it that check `Host` and bodies; it refuses other origins itself.

    Args:
        pulse: figures of the server.
        upstream: the served API.
        model_name: name in config.yaml.
        api_url: root of the served API, for examples.
    """

    def __init__(self, pulse: Pulse, upstream: Upstream, model_name: str, api_url: str) -> None:
        self._names = {"model": model_name, "api_url": api_url}
        self._pulse = pulse
        self._upstream = upstream
        self._files = {path: ((_PAGE / name).read_bytes(), kind)
                       for path, (name, kind) in _FILES.items()}  # fmt: skip
        self._scraping = asyncio.Lock()
        self._scraped_s = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        assert scope["type"] == "http"
        method, path = scope["method"], scope["path"]
        headers = dict(scope["headers"])
        opens_page = (method, path) == ("GET", "/") and _is_navigation(headers)
        if not (_is_same_origin(headers) or opens_page):
            await _send_error(send, 403, "forbidden", "only the console's own page may ask this.")
        elif method == "GET" and path in self._files:
            content, kind = self._files[path]
            await _send(send, 200, content, kind)
        elif (method, path) == ("GET", "/pulse"):
            await self._refresh()
            pulse = {**self._names, **self._pulse.snapshot()}
            await _send(send, 200, json.dumps(pulse).encode())
        elif method == "POST" and path in FORWARDED:
            await self._forward(scope, receive, send)
        else:
            await _send_error(send, 404, "not_found", "the console has no such route.")

    async def _refresh(self) -> None:
        """Scrape the server unless its figures are fresh or it is starting."""
        async with self._scraping:
            if not self._pulse.wants_metrics or time.monotonic() < self._scraped_s + _REFRESH_S:
                return
            try:
                page = await asyncio.wait_for(self._scrape(), _SCRAPE_TIMEOUT_S)
            except (EngineUnavailable, asyncio.TimeoutError):
                page = None
            self._pulse.on_metrics(page)
            self._scraped_s = time.monotonic()

    async def _scrape(self) -> str | None:
        async with self._upstream.send("GET", "/metrics/") as reply:
            page = b"".join([part async for part in reply.parts()])
        return page.decode(errors="replace") if reply.status == 200 else None

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request and return its response; if the browser disconnects, both end.

        Raises:
            ClientGone: the response was cut off; the server closes the browser's connection, so
                that a shortened answer never looks complete.
        """
        if (refusal := scope.get(REFUSAL)) is not None:
            await _send_error(send, refusal.status, refusal.code, refusal.message)
            return
        body = b""
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        headers = [(name, value) for name, value in scope["headers"] if name in _SENT_ON]
        relay = asyncio.ensure_future(
            self._relay(scope["method"], scope["path"], headers, body, send)
        )
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((relay, gone), return_when=asyncio.FIRST_COMPLETED)
            if relay.done():
                relay.result()
        finally:
            for task in (relay, gone):
                task.cancel()
            await asyncio.gather(relay, gone, return_exceptions=True)

    async def _relay(
        self, method: str, path: str, headers: Headers, body: bytes, send: Send
    ) -> None:
        has_begun = False
        try:
            async with self._upstream.send(method, path, headers, body) as reply:
                has_begun = True
                await _relay_reply(reply, send)
        except EngineUnavailable as error:
            if has_begun:
                raise ClientGone from error
            await _send_error(send, error.status, error.code, error.message)


def _is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Return False for a request from a page of another origin, or a form in it.

    Browsers send `Sec-Fetch-Site` or `Origin` with every such request; other programs send neither.
    """
    host, origin = headers.get(b"host", b""), headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"none")
    return site in (b"same-origin", b"none") and origin in (None, b"http://" + host)


def _is_navigation(headers: Mapping[bytes, bytes]) -> bool:
    """Return True for a link that opens in a window; a frame is another destination."""
    fetch = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return fetch == (b"navigate", b"document") and b"origin" not in headers


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _relay_reply(reply: PageReply, send: Send) -> None:
    headers = [(name, value) for name, value in reply.headers if name in _SENT_BACK]
    start: Message = {"type": "http.response.start", "status": reply.status}
    await send({**start, "headers": [*headers, *_SECURITY]})
    async for part in reply.parts():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, status: int, content: bytes, kind: bytes = b"application/json") -> None:
    length = (b"content-length", b"%d" % len(content))
    headers = [(b"content-type", kind), length, *_SECURITY]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _send_error(send: Send, status: int, code: str, message: str) -> None:
    """Send an error in the format that OpenAI's API and predict share."""
    error = {"code": code, "message": message, "param": None}
    await _send(send, status, json.dumps({"error": error}).encode())


class ConsoleServer:
    """Serves the console on loopback while entered, from a thread.

    Args:
        port: on 127.0.0.1, opened on entry.
        limits: the limits of bodies.
    """

    def __init__(self, port: int, app: ConsoleApp, limits: Serving) -> None:
        self._port = port
        self._app = LocalGuard(partial(BodyGuard(limits).run, app), LOOPBACK)

    @property
    def url(self) -> str:
        return f"http://localhost:{self._port}/"

    def __enter__(self) -> ConsoleServer:
        try:
            listening = socket.create_server((LOOPBACK, self._port))
        except OSError as error:
            raise SettingsError(
                f"--console is {self._port}; that port cannot be used "
                f"({error.strerror or error}). Choose another one."
            ) from None
        self._listening = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                access_log=False,
                http="h11",
                lifespan="off",
                log_config=None,
                server_header=False,
                # a broken connection is not worth reporting; the page shows it
                log_level="critical",
                loop="asyncio",
                timeout_graceful_shutdown=_GRACE_S,
                ws="none",
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="console", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
