"""A client disconnect stops generation in any state of the request and leaks nothing."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from pathlib import Path

import httpx
import pytest
from tests.support.truss_process import Served, listening_addresses
from tests.support.waiting import settles

LIMIT_S = 45  # the documented limit is 0.5 s; the whole answer takes a minute
ROUNDS = 32
LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}


def open_request(server: Served, body: dict[str, object]) -> socket.socket:
    """Send a request over a bare socket, so that the test controls when it closes."""
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/models/model:predict HTTP/1.1\r\nHost: localhost:{server.port}\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head.encode() + payload)
    return connection


def await_text(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received or received.endswith(b"\r\n\r\n"):
        received += connection.recv(4096)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_stops_the_engine(server: Served, stream: bool) -> None:
    before = len(server.cancelled())
    connection = open_request(server, {**LONG, "stream": stream})
    if stream:
        await_text(connection)
    else:
        assert settles(lambda: server.running() == 1)
    connection.close()
    assert settles(lambda: len(server.cancelled()) > before, LIMIT_S), server.log[-2000:]
    assert server.cancelled()[-1] < LONG["max_tokens"]


def test_leaving_before_the_first_token_stops_the_engine(server: Served) -> None:
    before = len(server.cancelled())
    # The prefill of a long prompt outlasts the client.
    connection = open_request(server, {**LONG, "prompt": "word " * 4000})
    assert settles(lambda: server.running() == 1)
    connection.close()
    assert settles(lambda: len(server.cancelled()) > before), server.log[-2000:]
    assert server.cancelled()[-1] <= 1


def test_many_disconnects_leak_nothing(server: Served) -> None:
    (server_pid,) = [pid for pid, name in server.processes().items() if is_truss_server(pid)]
    server.post({"prompt": "warm", "max_tokens": 2})
    files_before = count(server_pid, "fd")
    threads_before = count(server_pid, "task")
    cancelled_before = len(server.cancelled())
    for number in range(ROUNDS):
        connection = open_request(server, {**LONG, "stream": number % 4 != 0})
        if number % 4 == 1:
            await_text(connection)
        else:
            time.sleep(0.02 * (number % 4))
        connection.close()
    answer = server.post({"prompt": "And then", "max_tokens": 4})
    assert answer.status_code == 200
    assert settles(lambda: running_requests(server) == 0), running_requests(server)
    assert settles(lambda: count(server_pid, "fd") <= files_before + 3)
    assert settles(lambda: count(server_pid, "task") <= threads_before + 3)
    assert len(server.cancelled()) - cancelled_before >= ROUNDS // 2


def test_disconnects_do_not_affect_other_requests(server: Served) -> None:
    greedy = {"prompt": "The capital of France is", "max_tokens": 32, "top_k": 1}
    alone = server.post(greedy).text
    leaving = [open_request(server, LONG) for _ in range(4)]
    with httpx.stream("POST", server.url, json=greedy, timeout=60) as answer:
        for connection in leaving:
            connection.close()
        text = "".join(answer.iter_text())
    assert text == alone


def is_truss_server(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return command[1].endswith(b"local_main.py") or command[2] == b"trtllm_truss.cli.main"


def count(pid: int, what: str) -> int:
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


def running_requests(server: Served) -> int:
    """Return the pending requests in Triton's metrics."""
    (triton,) = [pid for pid, name in server.processes().items() if name == "tritonserver"]
    for _, port in listening_addresses(triton):
        with contextlib.suppress(httpx.HTTPError):
            metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
            if pending := re.search(
                r"^nv_inference_pending_request_count\{.*} (\d+)", metrics, re.M
            ):
                return int(pending[1])
    raise AssertionError("Triton's metrics were not found")
