"""The console's port of a real server, without a browser."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from tests.support.truss_process import Served, free_port
from tests.support.waiting import settles

from trtllm_workbench.cli.main import main

pytestmark = pytest.mark.engines("cpu")
CHAT = "v1/chat/completions"


def console_url(server: Served) -> str:
    (url,) = re.findall(r"^console: (\S+)$", server.log, re.MULTILINE)
    return str(url)


def body(max_tokens: int = 8, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is machine learning?"}]
    return {"model": "m", "messages": messages, "max_tokens": max_tokens, **fields}


def pulse(server: Served) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{console_url(server)}pulse", timeout=60).json()
    return found


def test_the_page_and_its_pulse(server: Served) -> None:
    page = httpx.get(console_url(server), timeout=60)
    assert page.status_code == 200
    assert "<title>Console</title>" in page.text
    shown = pulse(server)
    assert (shown["state"], shown["model"]) == ("ready", "smollm2-135m-cpu")
    assert shown["api_url"] == f"http://localhost:{server.port}"
    assert [each["name"] for each in shown["phases"]] == [
        *("engine", "triton model repository", "tokenizer", "triton")
    ]
    assert all(each["took_s"] is not None for each in shown["phases"])
    assert shown["kv_is_reserved"]


def test_the_pulse_beats(server: Served) -> None:
    secret = "s3cr3t-question"
    sent = body(24)
    sent["messages"] = [{"role": "user", "content": secret}]
    answer = httpx.post(f"{console_url(server)}{CHAT}", json=sent, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] > 0
    text = answer.json()["choices"][0]["message"]["content"]
    own_id = answer.headers["x-request-id"]
    assert settles(
        lambda: own_id in [each["engine_request_id"] for each in pulse(server)["requests"]]
    )
    shown = pulse(server)
    (last, *_) = shown["requests"]
    assert (last["protocol"], last["status"]) == ("chat_completions", "finished")
    assert last["engine_request_id"] == own_id
    assert settles(
        lambda: (pulse(server)["tokens_per_s"] or 0) > 0 or bool(pulse(server)["gap_ms"])
    )
    assert secret not in json.dumps(shown)
    assert text not in json.dumps(shown)


def test_a_stream_goes_through_and_its_end_stops_the_engine(server: Served) -> None:
    long = body(1500, stream=True, temperature=0, ignore_eos=True)
    with httpx.stream("POST", f"{console_url(server)}{CHAT}", json=long, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = answer.iter_raw()  # httpx closes the connection with it
        assert b"data: " in next(pieces)
        assert server.running() == 1
    assert settles(lambda: server.running() == 0)


def test_errors_go_through(server: Served) -> None:
    answer = httpx.post(f"{console_url(server)}{CHAT}", json=body(temprature=1), timeout=60)
    assert answer.status_code == 400
    assert "temprature" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_other_pages_are_refused(server: Served, headers: dict[str, str], status: int) -> None:
    for path in ("", "pulse", "page.js"):
        assert (
            httpx.get(console_url(server) + path, headers=headers, timeout=60).status_code == status
        )
    kind = {"Content-Type": "text/plain"}  # what a form may send
    answer = httpx.post(
        console_url(server) + CHAT,
        content=json.dumps(body()),
        headers={**headers, **kind},
        timeout=60,
    )
    assert answer.status_code == status


def test_an_oversized_body_is_refused(server: Served) -> None:
    answer = httpx.post(f"{console_url(server)}{CHAT}", content=b"a" * (9 << 20), timeout=60)
    assert answer.status_code == 413


def test_ports_that_cannot_be_used(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    serve = ["serve", "--config", "config.yaml", "--port"]
    taken = console_url(server).rstrip("/").rpartition(":")[2]
    assert main([*serve, str(free_port()), "--console", taken]) == 2
    assert f"--console is {taken}; that port cannot be used" in capsys.readouterr().err
    assert main([*serve, "8081", "--console"]) == 2
    assert "--port and --console are both 8081" in capsys.readouterr().err
