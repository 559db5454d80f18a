"""The command line before it starts anything, and the terminal client against a small server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from trtllm_truss.cli.main import main


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers as a Truss does; the prompt says how."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({**body, "path": self.path, "key": self.headers["Authorization"]})
        if body.get("prompt") == "refuse":
            error = json.dumps({"error": {"code": "x", "message": "no such thing", "param": None}})
            self.send_response(400)
            self.send_header("Content-Length", str(len(error)))
            self.end_headers()
            self.wfile.write(error.encode())
            return
        self.send_response(200)
        if body["stream"]:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in ("Hé".encode()[:2], "Hé".encode()[2:], b" there"):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if body["prompt"] != "cut":
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True
        else:
            text = json.dumps({"text": "whole"}).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Answering.requests.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_predict_streams(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["predict", "--url", url, "--max-tokens", "9", "--stop", "a", "--stop", "b", "Hi"])
        == 0
    )
    assert capsys.readouterr().out == "Hé there\n"
    (request,) = Answering.requests
    assert request == {
        "prompt": "Hi",
        "stream": True,
        "max_tokens": 9,
        "stop_words": ["a", "b"],
        "path": "/v1/models/model:predict",
        "key": None,
    }


def test_predict_whole_and_deployed(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASETEN_API_KEY", "abc")
    assert main(["predict", "--url", f"{url}/production/predict", "--no-stream", "Hi"]) == 0
    assert capsys.readouterr().out == "whole\n"
    assert Answering.requests[0]["path"] == "/production/predict"
    assert Answering.requests[0]["key"] == "Api-Key abc"


def test_predict_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", url, "refuse"]) == 1
    assert capsys.readouterr().err == "error: no such thing (HTTP 400)\n"


def test_predict_cut_short_is_an_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", url, "cut"]) == 1
    assert "broke off" in capsys.readouterr().err


def test_predict_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", "http://127.0.0.1:9", "Hi"]) == 1
    assert "is `trtllm-truss serve` running there?" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_bad_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--port", port])
    assert caught.value.code == 2
    assert "must be 1 to 65535" in capsys.readouterr().err


def test_serve_outside_a_truss(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert main(["serve"]) == 2
    assert "--truss" in capsys.readouterr().err
