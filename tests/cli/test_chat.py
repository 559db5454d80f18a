"""A conversation against a small server that speaks the predict API."""

from __future__ import annotations

import http.server
import io
import json
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from tests.support.serving import serving

from trtllm_truss.errors import EngineUnavailable, InvalidRequest, TrussError
from trtllm_truss.literals import printable
from trtllm_workbench.cli.chat_terminal import ChatTerminal
from trtllm_workbench.cli.conversation import Conversation
from trtllm_workbench.cli.main import main

FINISH = {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


class Answering(http.server.BaseHTTPRequestHandler):
    """Repeats the last message; some messages select another answer."""

    bodies: ClassVar[list[dict[str, object]]] = []
    left = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "refuse":
            self._send(400, json.dumps({"error": {"message": "no such thing"}}))
            return
        self._send(200, f"data: {json.dumps({'text': text})}\n\n")
        if text == "fail":
            self._send(0, 'data: {"error": {"code": "x", "message": "the engine is gone"}}\n\n')
        elif text == "hang":
            self.rfile.read(1)  # until the client leaves
            self.left.set()
        elif text != "cut":
            self._send(0, f": keep-alive\n\ndata: {json.dumps(FINISH)}\n\n")

    def _send(self, status: int, text: str) -> None:
        if status:
            self.send_response(status)
            self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Answering.bodies.clear()
    Answering.left.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


def silent(text: str) -> None:
    pass


def test_answers_continue_the_conversation(url: str) -> None:
    conversation = Conversation(url, {"max_tokens": 9}, "Be brief.")
    pieces: list[str] = []
    summary = conversation.ask("one", pieces.append)
    assert pieces == ["one"]
    assert (summary.prompt_tokens, summary.tokens, summary.finish_reason) == (5, 2, "stop")
    conversation.ask("two", silent)
    system = {"role": "system", "content": "Be brief."}
    first = [{"role": role, "content": "one"} for role in ("user", "assistant")]
    assert Answering.bodies[1] == {
        "max_tokens": 9,
        "messages": [system, *first, {"role": "user", "content": "two"}],
    }
    conversation.retry(silent)
    assert Answering.bodies[2] == Answering.bodies[1]
    assert "3 answers, 6 tokens" in conversation.statistics()
    conversation.clear()
    assert conversation.messages == [system]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("refuse", TrussError, r"no such thing \(HTTP 400\)"),
        ("fail", TrussError, "the engine is gone"),
        ("cut", EngineUnavailable, "cut off"),
    ],
)
def test_a_question_without_an_answer_waits_for_retry(
    url: str, text: str, kind: type[TrussError], message: str
) -> None:
    conversation = Conversation(url, {})
    with pytest.raises(kind, match=message):
        conversation.ask(text, silent)
    assert conversation.messages == [{"role": "user", "content": text}]
    with pytest.raises(kind):
        conversation.retry(silent)
    conversation.ask("Hi", silent)
    assert [each["content"] for each in conversation.messages] == ["Hi", "Hi"]
    assert len(conversation.summaries) == 1


def test_nothing_to_retry() -> None:
    with pytest.raises(InvalidRequest, match="no message to retry"):
        Conversation("http://127.0.0.1:9", {}).retry(silent)


def test_ctrl_c_keeps_the_text_and_closes_the_connection(url: str) -> None:
    conversation = Conversation(url, {})

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.ask("hang", interrupt)
    assert Answering.left.wait(60)
    assert [each["role"] for each in conversation.messages] == ["user", "assistant"]


def test_a_saved_conversation(url: str, tmp_path: Path) -> None:
    conversation = Conversation(url, {})
    conversation.ask("é", silent)
    file = tmp_path / "saved.json"
    conversation.save(file)
    assert json.loads(file.read_text(encoding="utf-8")) == {"messages": conversation.messages}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for other in (file, tmp_path, tmp_path / "none/saved.json", tmp_path / "a\0b"):
        with pytest.raises(InvalidRequest, match="name a new file"):
            conversation.save(other)


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\r\b\u202eevil\u2066\x7f\ud800 שלום 日本 \t\n<b>"


def test_no_text_moves_the_cursor() -> None:
    shown = printable(HOSTILE)
    assert shown == "␛]0;title␇␛[2J\\x9b31m␍␈\\u202eevil\\u2066␡? שלום 日本 \t\n<b>"
    assert shown.encode().decode() == shown


@pytest.fixture
def typed(url: str, capsys: pytest.CaptureFixture[str]) -> Iterator[object]:
    """Type into the terminal; return what it printed."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        conversation = Conversation(url, {})

        def type_keys(text: str) -> str:
            keys.send_text(text)
            ChatTerminal(conversation).run("hello")
            return capsys.readouterr().out

        yield type_keys


def test_commands_of_the_terminal(typed, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    printed = typed(
        "/retry\r/help\r/nope\r \r/system\r/system Be brief.\rone\x1b\rtwo\\\rthree\r/stats\r"
        f'/retry\rrefuse\r/system ""\r/save {file}\r/save {file}\r/clear\r/exit\rnever sent\r'
    )
    for words in (
        *("hello", "no message to retry", "Ctrl-C stops an answer", "/nope is not a command"),
        *("system message: none", "system message: Be brief.", "one\ntwo\nthree\n[2 tokens"),
        *(
            "1 answer, 2 tokens; first token after",
            "error: no such thing (HTTP 400)\n/retry asks again.",
            f"saved: {file}",
        ),
        *(f"error: {file} cannot be written (File exists)", "a new conversation"),
    ):
        assert words in printed, words
    assert len(Answering.bodies) == 3
    assert json.loads(file.read_text())["messages"][-1] == {"role": "user", "content": "refuse"}


def test_hostile_text_in_the_terminal(typed) -> None:
    typed("\x1b[200~\x1b[2J<script>\u202e\x1b[201~\r\x04")
    printed = typed("fail\r\x04")
    assert "error: the engine is gone" in printed
    assert "\x1b" not in printed


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return main(["chat", *arguments])


def test_a_pipe_is_one_message(
    url: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    message = "two\nlines \x1b[2J é"
    assert piped(monkeypatch, message.encode() + b"\n", "--url", url, "--system", "Be brief.") == 0
    assert capfdbinary.readouterr().out.decode() == message + "\n"  # exact for the next program
    assert Answering.bodies == [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": message},
            ],
            "max_tokens": 512,
        }
    ]
    assert piped(monkeypatch, b"Hi", "--url", url, "--temperature", "0") == 0
    assert Answering.bodies[1]["temperature"] == 0
    assert "top_p" not in Answering.bodies[1]


@pytest.mark.parametrize(
    ("text", "arguments", "status", "message"),
    [
        (b" \n", [], 1, "standard input is empty"),
        (b"cut", [], 1, "cut off"),
        (b"Hi", ["--config", "config.yaml"], 2, "use one of them"),
    ],
)
def test_a_pipe_without_an_answer(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: bytes,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    assert piped(monkeypatch, text, "--url", url, *arguments) == status
    assert message in capsys.readouterr().err
