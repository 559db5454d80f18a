"""The console's port: who may ask what, and streams that end on both sides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.truss_process import free_port
from tests.support.waiting import PATIENCE_S, until

from trtllm_workbench.console.app import FORWARDED, ClientGone, ConsoleApp, Upstream
from trtllm_workbench.console.pulse import Pulse

HOST = {"host": "localhost:8081"}
CHAT = "/v1/chat/completions"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Server:
    """The served API; `reply` is sent to every request, and the connection then closed."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        self.stays = False
        self.ended = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = sum(int(line.split(": ")[1]) for line in head.splitlines()
                     if line.lower().startswith("content-length"))  # fmt: skip
        self.bodies.append(await reader.readexactly(length))
        writer.write(self.reply)
        if self.stays:
            await reader.read()  # until the console closes
        self.ended += 1
        writer.close()


class Browser:
    """One request to the app; `leave` disconnects it."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.sent: list[dict[str, Any]] = []
        self._left = asyncio.Event()

    async def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] = HOST, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        messages = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            for message in messages:
                return message
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        await self._app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in self.sent)
        if not self.sent:
            return 0, {}, b""
        found = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        return self.sent[0]["status"], found, content

    def leave(self) -> None:
        self._left.set()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, ConsoleApp, Pulse]]:
    server = Server()
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    pulse = Pulse()
    yield (
        server,
        ConsoleApp(pulse, Upstream("127.0.0.1", port), "m", "http://localhost:8080"),
        pulse,
    )
    listening.close()


Served = tuple[Server, ConsoleApp, Pulse]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8081"}, 200),
        ({"origin": "http://localhost:8081", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://localhost:8080"}, 403),  # another port is another origin
        ({"origin": "https://localhost:8081"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),  # an image or a script of another page
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
async def test_only_its_own_page_may_ask(
    served: Served, headers: dict[str, str], status: int
) -> None:
    server, app, _ = served
    for method, path in (("GET", "/pulse"), ("GET", "/"), ("POST", CHAT)):
        answer = await Browser(app).ask(path, method, {**HOST, **headers}, b"{}")
        assert answer[0] == status, path
    assert len(server.heads) == (1 if status == 200 else 0)


async def test_a_link_on_another_page_opens_the_console(served: Served) -> None:
    _, app, _ = served
    link = {
        **HOST,
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert (await Browser(app).ask("/", headers=link))[0] == 200
    for method, path, changes in (
        ("GET", "/", {"sec-fetch-dest": "iframe"}),
        ("GET", "/", {"origin": "https://evil.example"}),
        ("GET", "/pulse", {}),
        ("POST", CHAT, {}),
    ):
        assert (await Browser(app).ask(path, method, {**link, **changes}))[0] == 403


async def test_the_public_routes_alone_are_open(served: Served) -> None:
    server, app, _ = served
    for path in FORWARDED:
        assert (await Browser(app).ask(path, "POST", body=b'{"a": 1}'))[0] == 200
        assert (await Browser(app).ask(path, "GET"))[0] == 404
    assert len(server.heads) == len(FORWARDED) == 5
    assert set(server.bodies) == {b'{"a": 1}'}
    for method, path in (
        *(("GET", "/metrics"), ("GET", "/metrics/"), ("POST", "/hot-reload"), ("GET", "/page.py")),
        *(("POST", "/"), ("HEAD", "/"), ("GET", "/../app.py"), ("GET", "//"), ("DELETE", CHAT)),
        *(("POST", f"{CHAT}/"), ("POST", "/v1/embeddings"), ("GET", "/v1/models/model")),
    ):
        status, _, body = await Browser(app).ask(path, method)
        assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
    assert len(server.heads) == 5


async def test_headers_of_both_sides(served: Served) -> None:
    server, app, _ = served
    server.reply = (
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\nx-request-id: r\r\n"
        b"set-cookie: a=b\r\naccess-control-allow-origin: *\r\ncontent-length: 2\r\n\r\n{}"
    )
    sent = {**HOST, "origin": "http://localhost:8081", "cookie": "a", "accept": "text/event-stream"}
    status, headers, body = await Browser(app).ask(CHAT, "POST", sent)
    assert (status, body) == (429, b"{}")
    assert (headers["retry-after"], headers["x-request-id"]) == ("3", "r")
    assert not {"set-cookie", "access-control-allow-origin"} & headers.keys()
    assert "accept: text/event-stream" in server.heads[0]
    assert "cookie" not in server.heads[0]
    assert "origin" not in server.heads[0]
    for path in ("/", "/page.js", "/pulse", CHAT):
        _, headers, _ = await Browser(app).ask(path, "POST" if path == CHAT else "GET")
        policy = dict(part.strip().split(" ", 1) for part in
                      headers["content-security-policy"].split(";"))  # fmt: skip
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"


async def test_a_stream_arrives_piece_by_piece(served: Served) -> None:
    server, app, _ = served
    server.reply, server.stays = CHUNKED + b"5\r\nhello\r\n", True
    browser = Browser(app)
    asked = asyncio.ensure_future(browser.ask(CHAT, "POST"))
    await until(lambda: any(message.get("body") == b"hello" for message in browser.sent))
    assert server.ended == 0
    browser.leave()
    await asked
    await until(lambda: server.ended == 1)  # the server stops the engine's request


async def test_a_browser_that_leaves_before_the_first_piece(served: Served) -> None:
    server, app, _ = served
    server.reply, server.stays = b"", True
    browser = Browser(app)
    asked = asyncio.ensure_future(browser.ask(CHAT, "POST"))
    await until(lambda: bool(server.heads))
    browser.leave()
    assert await asked == (0, {}, b"")
    await until(lambda: server.ended == 1)


@pytest.mark.parametrize("reply", [CHUNKED, CHUNKED + b"5\r\nhel", CHUNKED + b"zz\r\n"])
async def test_a_stream_that_breaks_never_looks_whole(served: Served, reply: bytes) -> None:
    server, app, _ = served
    server.reply = reply
    browser = Browser(app)
    with pytest.raises(ClientGone):
        await browser.ask(CHAT, "POST")
    assert all(message.get("more_body", True) for message in browser.sent)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 20", b"nonsense\r\n\r\n"])
async def test_a_server_without_an_answer(served: Served, reply: bytes) -> None:
    server, app, _ = served
    server.reply = reply
    status, _, body = await Browser(app).ask(CHAT, "POST")
    assert (status, json.loads(body)["error"]["code"]) == (503, "engine_unavailable")


async def test_a_server_that_is_gone() -> None:
    pulse = Pulse()
    pulse.ready()
    app = ConsoleApp(pulse, Upstream("127.0.0.1", free_port()), "m", "u")
    assert (await Browser(app).ask(CHAT, "POST"))[0] == 503
    _, _, body = await Browser(app).ask("/pulse")
    assert json.loads(body)["state"] == "unreachable"


async def test_a_server_that_hangs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server, app, pulse = served
    monkeypatch.setattr("trtllm_workbench.console.app._SCRAPE_TIMEOUT_S", 1)  # after it connects
    server.reply, server.stays = b"", True
    pulse.ready()
    _, _, body = await Browser(app).ask("/pulse")
    assert json.loads(body)["state"] == "unreachable"


async def test_pages_share_a_scrape_and_none_is_made_during_the_start(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, app, pulse = served
    monkeypatch.setattr("trtllm_workbench.console.app._REFRESH_S", PATIENCE_S)
    page = b"trtllm_truss_engine_up 1\n"
    server.reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page)
    _, _, body = await Browser(app).ask("/pulse")
    assert json.loads(body)["state"] == "starting"
    assert not server.heads
    pulse.ready()
    answers = await asyncio.gather(*(Browser(app).ask("/pulse") for _ in range(8)))
    assert {json.loads(body)["state"] for _, _, body in answers} == {"ready"}
    assert json.loads(body)["model"] == "m"
    assert [head.split()[1] for head in server.heads] == ["/metrics/"]


async def test_a_websocket_is_closed(served: Served) -> None:
    _, app, _ = served
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket", "path": "/", "headers": []}, None, send)  # type: ignore
    assert sent == [{"type": "websocket.close"}]
