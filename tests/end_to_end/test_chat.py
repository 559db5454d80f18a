"""`chat` against the real server: on a terminal, and in a pipe."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.terminal import Terminal
from tests.support.truss_process import Served
from tests.support.waiting import settles

pytestmark = pytest.mark.engines("cpu")
QUESTION = "What is machine learning?"


def test_a_conversation_on_a_terminal(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    root = f"http://127.0.0.1:{server.port}"
    arguments = ["chat", "--url", root, "--temperature", "0", "--max-tokens", "160"]
    with Terminal(*arguments) as terminal:
        terminal.until("/help lists the commands")
        terminal.type(f"{QUESTION}\r")
        terminal.until("Machine learning is")  # of some hundred tokens that are to come
        terminal.type("Answer in\x1b\r")  # Alt-Enter; what is typed now waits for the prompt
        terminal.type("\x03")
        assert "Answer in" not in terminal.until(r"\[stopped\]")
        assert settles(lambda: server.running() == 0)
        before = server.metric("prompt_tokens_total")

        terminal.type("one word.\r")
        shown = terminal.until(r"\[\d+ tokens, finish reason \w+; first token after .*tokens/s\]")
        read = server.metric("prompt_tokens_total") - before
        terminal.type(f"/stats\r/save {file}\r")
        terminal.until(r"1 answer, \d+ tokens?; first token after.*saved: ")
        terminal.type("\x03")  # at the prompt it ends nothing
        terminal.until("Ctrl-D ends.*>")  # the next prompt
        terminal.type("\x04")
        assert terminal.end() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    messages = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant"] * 2
    assert messages[1]["content"].startswith("Machine learning is")
    assert messages[2]["content"] == "Answer in\none word."
    last = messages.pop()["content"]
    body = {"messages": messages, "max_tokens": 1}
    whole = httpx.post(f"{root}/v1/chat/completions", json=body, timeout=60).json()
    assert read == whole["usage"]["prompt_tokens"], "the whole conversation is sent"
    assert " ".join(last.split()) in " ".join(shown.split()), "lines are broken at words"


def test_a_message_from_a_pipe(server: Served) -> None:
    arguments = ["--url", server.url, "--temperature", "0", "--max-tokens", "20"]
    ran = subprocess.run(
        [sys.executable, "-m", "trtllm_truss", "chat", *arguments],
        input=f"{QUESTION}\n".encode(),
        capture_output=True,
        timeout=240,
    )
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20}
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode() == server.post(body).text + "\n"
