"""`serve` accepts requests of local programs and pages only."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import openai
import pytest
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.truss_process import LOOPBACK, Served, listening_addresses, listening_hosts
from tests.support.waiting import settles

from trtllm_truss.local_requests import is_loopback
from trtllm_workbench.cli.main import main

BODY = {"prompt": "Hi", "max_tokens": 2}
MPI_PROCESSES = {"triton_python_b", "python3", "orted", "prte"}
"""Of a checkpoint: the Python process that spawns, the workers, and the daemon between."""


def error(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()["error"]
    assert body.keys() == {"code", "message", "param"}
    return answer.status_code, body["code"]


def test_nothing_but_mpi_listens_on_a_public_address(
    server: Served, request: pytest.FixtureRequest
) -> None:
    is_checkpoint = request.node.callspec.params["server"] not in ("cpu", "own")
    names = {server.process.pid: "serve", **server.processes()}
    hosts = {pid: {host for host, _ in listening_addresses(pid)} for pid in names}
    public = {names[pid] for pid, addresses in hosts.items() if not addresses <= LOOPBACK}
    assert public <= (MPI_PROCESSES if is_checkpoint else set())
    assert "127.0.0.1" in set().union(*hosts.values())


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8080", "10.0.0.1", "[::2]", "", "169.254.169.254:80"],
)
def test_another_machines_name_is_refused(server: Served, host: str) -> None:
    answer = server.post(BODY, headers={"Host": host})
    assert error(answer) == (421, "misdirected_request")
    assert "--host" in answer.json()["error"]["message"]
    metrics = f"http://127.0.0.1:{server.port}/metrics/"
    assert httpx.get(metrics, headers={"Host": host}, timeout=60).status_code == 421


@pytest.mark.parametrize("host", ["localhost@evil.example", "localhost/evil", "["])
def test_what_is_no_name_is_refused(
    server: Served, host: str, request: pytest.FixtureRequest
) -> None:
    """Our own server refuses it as invalid HTTP, also when it listens on a public address."""
    is_own = request.node.callspec.params["server"] == "own"
    expected = (400, "invalid_request") if is_own else (421, "misdirected_request")
    assert error(server.post(BODY, headers={"Host": host})) == expected
    metrics = f"http://127.0.0.1:{server.port}/metrics/"
    assert httpx.get(metrics, headers={"Host": host}, timeout=60).status_code == expected[0]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "127.1.2.3", "[::1]"])
def test_every_name_of_this_machine_is_answered(server: Served, host: str) -> None:
    assert server.post(BODY, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost.evil.example", "null", "http://[", ""]
)
def test_pages_of_other_machines_are_refused(server: Served, origin: str) -> None:
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    assert error(server.post(BODY, headers=headers)) == (403, "forbidden")


@pytest.mark.engines("cpu", own=False)  # our own server has no log of accesses
def test_a_page_writes_no_escape_sequence_into_the_log(server: Served) -> None:
    """An image of any page sends such a request, without an `Origin`."""
    path = b"/%1b]0;PWN%07/%c2%9b%e2%80%ae/%0aready:%20POST"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET %b HTTP/1.0\r\nHost: localhost\r\n\r\n" % path)
        while connection.recv(65536):
            pass
    shown = "GET /␛]0;PWN␇/\\x9b\\u202e/␊ready: POST HTTP/1.0 404"
    assert settles(lambda: any(line.endswith(shown) for line in server.lines)), server.log


def test_pages_of_this_machine_are_answered(server: Served) -> None:
    assert server.post(BODY, headers={"Origin": "http://localhost:3000"}).status_code == 200


def test_the_routes_by_which_clients_look_for_a_model(server: Served) -> None:
    base = f"http://127.0.0.1:{server.port}"
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        assert (model.id, model.object) == ("smollm2-135m-cpu", "model")
        assert client.models.retrieve(model.id) == model
        assert model.max_model_len == 8192
        with pytest.raises(openai.NotFoundError, match="embeddings are not served") as refused:
            client.embeddings.create(model=model.id, input="Hi")
    assert refused.value.code == "not_served"
    for path in ("/health", "/health/ready"):
        assert httpx.get(f"{base}{path}", timeout=60).status_code == 200
    assert (
        httpx.get(f"{base}/v1/models", headers={"Host": "evil.example"}, timeout=60).status_code
        == 421
    )


@pytest.mark.parametrize("path", ["/hot-reload", "/hot-reload/"])
def test_the_code_is_not_imported_again(server: Served, path: str) -> None:
    answer = httpx.post(f"http://127.0.0.1:{server.port}{path}", timeout=60)
    assert error(answer) == (404, "not_found")


def test_a_websocket_of_another_page_is_refused(server: Served) -> None:
    head = (
        "GET /v1/websocket HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 403 ")


def test_a_public_host_is_open_with_a_warning(tmp_path: Path) -> None:
    config = config_for(write_engine(tmp_path / "engine"))
    served = Served(config, FAKE_ENGINE, ["--host", "0.0.0.0"])
    try:
        served.wait_until_ready()
        (warning,) = [line for line in served.lines if line.startswith("warning: ")]
        assert "requires no key" in warning
        assert "0.0.0.0" in listening_hosts(served)
        headers = {"Host": "model.example", "Origin": "https://model.example"}
        assert served.post(BODY, headers=headers).status_code == 200
        answer = httpx.post(f"http://127.0.0.1:{served.port}/hot-reload", timeout=60)
        assert error(answer) == (404, "not_found")
    finally:
        assert served.end() == 0


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("203.0.113.7", "203.0.113.7 is not an address of this machine"),
        ("no.such.host.invalid", "must be an address or a name of this machine"),
        ("", "must be an address or a name of this machine"),
        ("x" * 70, "must be an address or a name of this machine"),
    ],
)
def test_an_invalid_host_is_named(
    host: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", "config.yaml", "--host", host]) == 2
    assert words in capsys.readouterr().err


def test_names_of_this_machine() -> None:
    ours = ["localhost", "Localhost.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"]
    others = ["localhost.evil.example", "0.0.0.0", "::", "127.0.0.1.nip.io", "10.0.0.1", ""]
    assert all(map(is_loopback, ours))
    assert not any(map(is_loopback, others))


def test_an_oversized_chunked_body_is_refused(server: Served) -> None:
    """Send chunks, without a Content-Length."""
    chunk = b"a" * (1 << 20)
    answer = httpx.post(server.url, content=(chunk for _ in range(64)), timeout=60)
    assert error(answer) == (413, "body_too_large")
    assert server.post(BODY).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/model:predict", "/v1/chat/completions"])
def test_a_request_with_two_lengths_is_refused(server: Served, path: str) -> None:
    """Send a request that another server may read as two."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode())
        with connection.makefile("rb") as reader:
            answer = reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"both Content-Length and Transfer-Encoding" in answer
