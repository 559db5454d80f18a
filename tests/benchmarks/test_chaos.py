"""The chaos run passes, and its clients detect each kind of fault."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import __main__ as command
from benchmarks.chaos import clients
from benchmarks.chaos.clients import KINDS, Tally, Visitor
from benchmarks.chaos.texts import Texts
from benchmarks.result import CaseResult
from tests.support.paths import ROOT
from tests.support.serving import serving

STREAMED = ("plain", "slow", "events", "chat")


@pytest.mark.thorough
@pytest.mark.server
def test_a_few_seconds_of_chaos(tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "chaos", "--quick", "--minutes", "0.1"),
            *("--seed", "11", "--output", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads((tmp_path / "chaos.json").read_text())
    assert result["faults"] == []
    *_, everyone = result["rows"]
    assert everyone["client"] == "all"
    assert everyone["whole"] > 0
    assert "strikes" in "".join(result["findings"])


def test_a_fault_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def case(options: object) -> CaseResult:
        result = CaseResult("chaos", "Chaos", "", [])
        result.fault("1 requests ended wrong.")
        return result

    monkeypatch.setattr(command, "case", lambda _: case)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "chaos", "--output", str(tmp_path)])
    assert command.main() == 1
    assert "FAULT: 1 requests ended wrong." in capsys.readouterr().out


class Misbehaving(http.server.BaseHTTPRequestHandler):
    """Answers in the way that the test sets."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.close_connection = True
        state = self.server.state  # type: ignore[attr-defined]
        if state.way == "no status":
            return
        self.send_response(500 if state.way == "500" else 200)
        self.send_header("Connection", "close")
        if state.way == "500":
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send_chunk(state.content)
        if state.way == "silence":
            state.over.wait(30)
        if state.way != "cut":
            self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
    server.state = SimpleNamespace(way="", content=b"", over=threading.Event())  # type: ignore
    with serving(server):
        yield server
        server.state.over.set()  # type: ignore[attr-defined]


EVENT = b'data: {"text": "Once"}\n\n'
WRONG_ANSWERS = [
    *((kind, b"Once", "whole", "wrong") for kind in ("plain", "slow")),
    ("events", EVENT, "whole", "wrong"),  # no finish
    ("events", b'data: {"finish_reason": "length"}\n\n', "whole", "wrong"),
    ("chat", b"data: [DONE]\n\n", "whole", "wrong"),
    ("json", b'{"text": "Once"}', "whole", "wrong"),
    ("json", b"{}", "whole", "wrong"),
    ("chat json", b'{"choices": [{"message": {"content": "Once"}}]}', "whole", "wrong"),
    ("bad", b"{}", "whole", "wrong"),
    *((kind, b"", "cut", "cut") for kind in STREAMED),
    ("events", b'data: {"error": {"code": "engine_unavailable"}}\n\n', "whole", "cut"),
    ("events", b'data: {"error": {"code": "internal_error"}}\n\n', "whole", "internal"),
    *((kind, b"", "500", "internal") for kind in KINDS),
    *((kind, b"", "no status", "lost") for kind in KINDS if kind != "leaver"),
    *((kind, b"", "silence", "hung") for kind in STREAMED),
]


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts()


@pytest.mark.parametrize(("kind", "content", "way", "end"), WRONG_ANSWERS)
def test_clients_notice(
    server: http.server.ThreadingHTTPServer,
    texts: Texts,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    content: bytes,
    way: str,
    end: str,
) -> None:
    if way == "silence":
        monkeypatch.setattr(clients, "_LIMIT_S", 0.2)
    server.state.way, server.state.content = way, content or b": nothing\n\n"  # type: ignore
    url = f"http://127.0.0.1:{server.server_port}"
    visitor = Visitor(KINDS.index(kind), 1, url, texts, 1 << 10)
    tally = Tally()

    async def visit() -> None:
        over = asyncio.Event()
        over_soon = asyncio.create_task(visitor.run(tally, over))
        await asyncio.sleep(0)
        over.set()
        await over_soon

    asyncio.run(visit())
    assert dict(tally.ends) == {(kind, end): 1}
