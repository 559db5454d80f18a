"""Bodies are bounded one by one, all together and in time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import partial
from types import ModuleType
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import FakeEngine
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.virtual_time import virtually

from trtllm_truss.endpoints.application import Application
from trtllm_truss.endpoints.guard import REFUSAL, SLOWEST_BYTES_PER_S, BodyGuard
from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.endpoints.truss_application import answer_while_importing, guard_application
from trtllm_truss.local_requests import PREDICT
from trtllm_truss.settings.model import Serving

LIMITS = Serving(max_body_bytes=1024, max_bodies_bytes=2048, body_timeout_s=30)
SLOW = Serving(body_timeout_s=30)


class Upload:
    """One request to an application that finishes when `finish` is called.

    Attributes:
        bodies: the bodies passed to the application, and the code of the refusal, if any.
    """

    def __init__(self, guard: BodyGuard, *headers: tuple[bytes, bytes], method: str = "POST"):
        self.bodies: list[tuple[bytes, str | None]] = []
        self.sent: list[Any] = []
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._finish = asyncio.Event()
        scope = {"type": "http", "method": method, "headers": headers}
        running = guard.run(self._app, scope, self._events.get, self._send)
        self.task = asyncio.get_running_loop().create_task(running)

    async def put(self, data: bytes, *, more: bool = True) -> Upload:
        self._events.put_nowait({"type": "http.request", "body": data, "more_body": more})
        await settle()
        return self

    async def leave(self) -> None:
        self._events.put_nowait({"type": "http.disconnect"})
        await settle()

    async def finish(self) -> None:
        self._finish.set()
        await self.task

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message["body"]
            has_more = message["more_body"]
        refusal = scope.get(REFUSAL)
        self.bodies.append((body, refusal and refusal.code))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self._finish.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@virtually
async def test_a_body_counts_from_its_first_byte_to_the_end_of_its_request() -> None:
    guard = BodyGuard(LIMITS)
    upload = await Upload(guard).put(b"a" * 500)
    assert guard.held_bytes == 500
    await upload.put(b"b" * 500, more=False)
    assert upload.bodies == [(b"a" * 500 + b"b" * 500, None)]
    assert guard.held_bytes == 1000
    await upload.finish()
    assert guard.held_bytes == 0


@virtually
async def test_a_body_beyond_the_limit_is_dropped_and_read_to_its_end() -> None:
    guard = BodyGuard(LIMITS)
    upload = await Upload(guard).put(b"a" * 1000)
    await upload.put(b"a" * 25)
    assert guard.held_bytes == 0
    assert not upload.bodies
    await upload.put(b"a" * 4000, more=False)
    assert upload.bodies == [(b"", "body_too_large")]
    assert upload.sent[0]["headers"] == []  # the connection can be used again


@pytest.mark.parametrize(
    ("encoding", "code"), [(b"gzip", "unsupported_encoding"), (b"Identity", None)]
)
@virtually
async def test_a_compressed_body_is_refused(encoding: bytes, code: str | None) -> None:
    guard = BodyGuard(LIMITS)
    upload = await Upload(guard, (b"content-encoding", encoding)).put(b"a" * 99, more=False)
    assert upload.bodies == [(b"" if code else b"a" * 99, code)]
    assert guard.held_bytes == (0 if code else 99)
    assert upload.sent[0]["headers"] == []  # the connection can be used again


@virtually
async def test_the_rest_of_an_endless_body_is_not_read() -> None:
    upload = Upload(BodyGuard(LIMITS))
    while not upload.bodies:
        await upload.put(b"a" * 1024)
    assert upload.bodies == [(b"", "body_too_large")]
    assert upload.sent[0]["headers"] == [(b"connection", b"close")]


@virtually
async def test_the_largest_unfinished_body_makes_room() -> None:
    guard = BodyGuard(LIMITS)
    done = await Upload(guard).put(b"a" * 900, more=False)
    large, small = await Upload(guard).put(b"b" * 800), await Upload(guard).put(b"c" * 300)
    assert guard.held_bytes == 2000
    await small.put(b"c" * 100, more=False)
    assert small.bodies == [(b"c" * 400, None)]
    await large.put(b"", more=False)
    assert large.bodies == [(b"", "overloaded")]
    assert guard.held_bytes == 1300
    refused = await Upload(guard).put(b"d" * 800, more=False)  # the others are complete
    assert refused.bodies == [(b"", "overloaded")]
    for upload in (done, large, small, refused):
        await upload.finish()
    assert guard.held_bytes == 0


@virtually
async def test_a_client_that_leaves_within_the_body_reaches_no_application() -> None:
    guard = BodyGuard(LIMITS)
    upload = await Upload(guard).put(b"a" * 1000)
    await upload.leave()
    assert upload.task.done()
    assert not upload.bodies
    assert guard.held_bytes == 0


@virtually
async def test_a_silent_body_is_refused_and_its_connection_closed() -> None:
    guard = BodyGuard(LIMITS)
    upload = await Upload(guard).put(b"a" * 1000)
    await asyncio.sleep(29)
    assert guard.held_bytes == 1000
    await asyncio.sleep(3)
    assert guard.held_bytes == 0
    assert upload.bodies == [(b"", "body_timeout")]
    assert upload.sent[0]["headers"] == [(b"connection", b"close")]


@pytest.mark.parametrize(("bytes_per_s", "code"), [(0.8, "body_timeout"), (1.1, None)])
@virtually
async def test_a_slow_body_has_a_second_for_each_part(bytes_per_s: float, code: str | None) -> None:
    upload = Upload(BodyGuard(SLOW))
    part = b"a" * int(SLOWEST_BYTES_PER_S * bytes_per_s * 10)
    for _ in range(20):
        await upload.put(part)
        await asyncio.sleep(10)
    assert bool(upload.bodies) is (code is not None)
    if code is None:
        await upload.put(b"", more=False)
        assert [code for _, code in upload.bodies] == [None]


@virtually
async def test_the_deadline_is_no_ones_who_has_sent_all() -> None:
    upload = await Upload(BodyGuard(LIMITS)).put(b"a", more=False)
    await asyncio.sleep(100)
    assert upload.bodies == [(b"a", None)]
    await upload.finish()


@pytest.mark.parametrize(("method", "codes"), [("POST", ["invalid_request"]), ("GET", [])])
@virtually
async def test_two_lengths_close_the_connection(method: str, codes: list[str]) -> None:
    lengths = ((b"content-length", b"4"), (b"transfer-encoding", b"chunked"))
    upload = Upload(BodyGuard(LIMITS), *lengths, method=method)
    await settle()
    if method == "GET":
        await upload.put(b"", more=False)
    assert [code for _, code in upload.bodies if code] == codes
    assert upload.sent[0]["headers"] == [(b"connection", b"close")]


def test_all_bodies_together_are_at_least_one() -> None:
    with pytest.raises(ValidationError, match="less than max_body_bytes"):
        Serving(max_body_bytes=2048, max_bodies_bytes=2047)
    with pytest.raises(ValidationError, match="less than max_body_bytes"):
        Serving(max_body_bytes=1 << 30)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """The endpoints behind a guard whose total limit one body reaches."""
    limits = Serving(max_body_bytes=1024, max_bodies_bytes=1024, chunk_interval_ms=0)
    engine = FakeEngine(lambda _: ["Yes", "."], smollm2_tokenizer(), limits=limits)
    routes = build_routes(engine, {})  # type: ignore[arg-type]
    app = Starlette(
        routes=[
            Route(path, endpoint.__call__, methods=["POST"]) for path, endpoint in routes.items()
        ]
    )
    guard = BodyGuard(limits)
    occupied = await Upload(guard).put(b"a" * 1000, more=False)
    transport = httpx.ASGITransport(partial(guard.run, app))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
        yield opened
    await occupied.finish()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/models/model:predict", None),
        ("/v1/chat/completions", "server_error"),
        ("/v1/responses", "server_error"),
        ("/v1/messages", "overloaded_error"),
        ("/invocations", None),
    ],
)
@pytest.mark.parametrize(("size", "status"), [(100, 503), (2000, 413)])
async def test_a_refusal_has_the_format_of_its_route(
    client: httpx.AsyncClient, path: str, kind: str | None, size: int, status: int
) -> None:
    answer = await client.post(path, content=b"a" * size)
    assert answer.status_code == status
    assert answer.headers.get("Retry-After") == ("5" if status == 503 else None)
    assert answer.headers["X-Request-Id"]
    body = answer.json()
    if path == "/invocations":
        assert body["code"] == status
        return
    setting = "serving.max_bodies_bytes" if status == 503 else "serving.max_body_bytes"
    assert setting in body["error"]["message"]
    if path != "/v1/messages":
        assert body["error"]["code"] == ("overloaded" if status == 503 else "body_too_large")
    if status == 503:
        assert body["error"].get("type") == kind


class Unguarded:
    """Replaces FastAPI, which uvicorn calls with the same three arguments."""

    def __init__(self) -> None:
        self.refusals: list[str | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = scope.get(REFUSAL)
        self.refusals.append(refusal and refusal.code)


async def test_a_second_start_replaces_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("truss_server")
    module.FastAPI = type("FastAPI", (Unguarded,), {})
    monkeypatch.setitem(sys.modules, "truss_server", module)
    app = module.FastAPI()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"a" * 2000, "more_body": False}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": []}
    for max_body_bytes in (1024, 4096):
        limits = Serving(max_body_bytes=max_body_bytes)
        application = Application({}, limits)
        application.begin(object(), {})  # type: ignore[arg-type]
        guard_application(application.before)
        await app(scope, receive, send)
    assert app.refusals == ["body_too_large", None]


def test_a_server_without_the_application_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "truss_server", ModuleType("truss_server"))
    guard_application(Application({}, LIMITS).before)
    assert "serving.max_bodies_bytes" in caplog.text


async def test_requests_before_the_model_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("truss_server")
    module.FastAPI = type("FastAPI", (Unguarded,), {})
    monkeypatch.setitem(sys.modules, "truss_server", module)
    answer_while_importing()
    app = module.FastAPI()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://server"
    ) as client:
        for method, path in (("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/other")):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert answer.json()["error"]["message"] == "the engine is starting."
    assert app.refusals == []
    scope = {"type": "http", "method": "GET", "path": "/v1/models/model"}
    await app(scope, None, None)
    assert app.refusals == [None], "the probes are Truss's"
