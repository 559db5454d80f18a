"""The verdict on a stream, which the figures of docs/fleet.md rest on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from benchmarks.fleet import processes
from benchmarks.fleet.live import Kills
from benchmarks.fleet.processes import Outcome, ask

TOKENS = 2
PIECE = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
END = {"choices": [{"delta": {}, "finish_reason": "length"}]}
STOPPED = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"completion_tokens": TOKENS}}
FEWER = {"choices": [], "usage": {"completion_tokens": TOKENS - 1}}
DONE = b"data: [DONE]\n\n"
BREAK, SILENCE = b"break", b"silence"


def events(*parts: dict[str, Any] | bytes) -> list[bytes]:
    return [
        part if isinstance(part, bytes) else f"data: {json.dumps(part)}\n\n".encode()
        for part in parts
    ]


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a server that sends the parts of the test's stream."""
    status, parts = request.param
    monkeypatch.setattr(processes, "PATIENCE_S", 0.5 if SILENCE in parts else 60.0)
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            with suppress(OSError):
                for part in parts:
                    if part == BREAK:
                        return
                    if part == SILENCE:
                        while not is_over.wait(0.05):
                            self._send(b": keep-alive\n\n")
                        return
                    self._send(part)
                self._send(b"")

        def _send(self, part: bytes) -> None:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    is_over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        ((200, events(PIECE, END, USAGE, DONE)), "whole"),
        ((200, events(PIECE, END, USAGE)), "short"),
        ((200, events(PIECE, END, DONE)), "short"),
        ((200, events(PIECE, END, FEWER, DONE)), "short"),
        ((200, events(PIECE, STOPPED, USAGE, DONE)), "short"),
        ((200, events(PIECE, b'data: {"choices": [\n\n')), "short"),
        ((200, events(PIECE, BREAK)), "error"),
        ((200, events(PIECE, {"error": {}}, DONE)), "error"),
        ((200, events(PIECE, SILENCE)), "hung"),
        ((429, events(b"{}")), "error"),
    ],
    indirect=["stream"],
)
def test_the_end_of_a_stream(stream: str, kind: str) -> None:
    assert ask(stream, "Hi", TOKENS).kind == kind


@pytest.mark.parametrize(
    ("outcomes", "kills", "faults"),
    [
        ([Outcome("whole"), Outcome("error", status=200)], 1, []),
        ([Outcome("whole"), Outcome("short"), Outcome("hung")], 1, ["1 short", "1 hung"]),
        (
            [Outcome("whole"), Outcome("error", status=429), Outcome("error")],
            *(1, ["before the answer: 1 429 status, 1 no status"]),
        ),
        ([Outcome("whole")], 0, ["nothing was shown"]),
    ],
)
def test_what_kills_must_not_cause(outcomes: list[Outcome], kills: int, faults: list[str]) -> None:
    assert Kills(outcomes, kills, 60.0).faults == faults
