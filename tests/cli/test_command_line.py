"""Argument checks of the command line, and `predict` against a small server."""

from __future__ import annotations

import http.server
import importlib.abc
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.certificates import new_certificate
from tests.support.serving import serving
from tests.support.warm_python import run_warm

from trtllm_truss.__main__ import main as entry
from trtllm_workbench.cli.main import main


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers like a Truss; the prompt selects the answer."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({**body, "path": self.path, "key": self.headers["Authorization"]})
        if body.get("prompt") in ("refuse", "locked"):
            error = json.dumps({"error": {"code": "x", "message": "no such thing", "param": None}})
            self.send_response(400 if body["prompt"] == "refuse" else 401)
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
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


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


@pytest.fixture
def https_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server for `localhost` and `model.example`, which resolve to loopback."""
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(new_certificate("localhost", "model.example"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    look_up = socket.getaddrinfo
    ours = {"model.example": "127.0.0.1"}
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest: look_up(ours.get(host, host), *rest)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    Answering.requests.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server.server_port


def test_predict_whole_and_deployed(
    https_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASETEN_API_KEY", "abc")
    url = f"https://model.example:{https_port}/production/predict"
    assert main(["predict", "--url", url, "--no-stream", "Hi"]) == 0
    assert capsys.readouterr().out == "whole\n"
    assert Answering.requests[0]["path"] == "/production/predict"
    assert Answering.requests[0]["key"] == "Api-Key abc"
    assert main(["predict", "--url", url, "locked"]) == 1
    assert capsys.readouterr().err == "error: no such thing (HTTP 401)\n"


@pytest.mark.parametrize(
    ("scheme", "host"),
    [("https", "localhost"), ("http", "127.0.0.1"), ("http", "localhost"), ("http", None)],
)
def test_the_key_goes_over_https_and_to_other_machines_only(
    url: str,
    https_port: int,
    scheme: str,
    host: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BASETEN_API_KEY", "abc")
    port = https_port if scheme == "https" else int(url.rpartition(":")[2])
    address = f"{scheme}://{host or 'model.example'}:{port}"
    assert main(["predict", "--url", address, "Hi"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["predict", "--url", address, "locked"]) == 1
    assert {request["key"] for request in Answering.requests} == {None}
    assert capsys.readouterr().err == (
        "error: no such thing (HTTP 401). BASETEN_API_KEY was not sent: it is sent to remote hosts "
        "over https only.\n"
    )


def test_predict_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", url, "refuse"]) == 1
    assert capsys.readouterr().err == "error: no such thing (HTTP 400)\n"


def test_predict_cut_short_is_an_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", url, "cut"]) == 1
    assert "cut off" in capsys.readouterr().err


def test_predict_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--url", "http://127.0.0.1:9", "Hi"]) == 1
    assert "is `trtllm-truss serve` running there?" in capsys.readouterr().err
    assert main(["predict", "--url", "http://model-x.invalid", "Hi"]) == 1
    assert capsys.readouterr().err.endswith("; correct --url.\n")


def test_predict_with_the_url_of_openais_api(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/v1", "/v1/chat/completions"):
        assert main(["predict", "--url", f"http://127.0.0.1:9{path}", "Hi"]) == 1
        told = f"give the server without {path}, a route of OpenAI's API."
        assert told in capsys.readouterr().err


def test_a_command_line_of_another_server_must_be_quoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["import", "trtllm-serve", "a/b", "--max_seq_len", "4k"])
    assert "unrecognized arguments: --max_seq_len 4k; quote the command" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_bad_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--port", port])
    assert caught.value.code == 2
    assert "must be 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "options", "words"),
    [
        ("{server_port: 8081}", ("--port", "65536"), "'65536' is not a port"),
        ("{server_port: 99999}", (), "docker_server.server_port: '99999' is not a port"),
        ("{server_port: null}", (), "docker_server.server_port: 'None' is not a port"),
    ],
)
def test_bad_port_of_our_own_server(
    section: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """A resolver uses the last 16 bits of a larger port."""
    (tmp_path / "config.yaml").write_text(f"docker_server: {section}")
    result = run_warm("trtllm_truss.cli.main", "serve", "--truss", str(tmp_path), *options)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_outside_a_truss(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert main(["serve"]) == 2
    assert "--truss" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "status"), [("serve", 0), ("demo", 130), ("check", 130)])
@pytest.mark.parametrize("module", ["trtllm_workbench.cli.main", "trtllm_workbench.cli.COMMAND"])
def test_ctrl_c_during_imports_has_the_status_of_the_command(
    command: str, status: int, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name.rpartition(".")[2] == module.replace("COMMAND", command).rpartition(".")[2]:
                raise KeyboardInterrupt

    for package in ("trtllm_workbench.cli", "trtllm_truss.cli"):
        for name in ("main", command):
            monkeypatch.delitem(sys.modules, f"{package}.{name}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["trtllm-truss", command])
    assert entry() == status
