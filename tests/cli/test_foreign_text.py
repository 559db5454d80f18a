"""Text of models, servers and repositories on the terminal of a command."""

from __future__ import annotations

import ast
import http.server
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.checkpoint.checkpoints import llama, write_checkpoint
from tests.support.paths import ROOT
from tests.support.serving import serving
from tests.support.terminal import Terminal

HOSTILE = "\x1b]0;PWN\x07\x1b[1A\x9b2K\x85\u202eevil\u2066\u2028\x7f\rend"
SHOWN = "␛]0;PWN␇␛[1A\\x9b2K\\x85\\u202eevil\\u2066\\u2028␡␍end"
FORGED = f"{HOSTILE}\nready: POST"
TWO_LINES, ONE_LINE = f"{SHOWN}\r\nready: POST", f"{SHOWN}␊ready: POST"
"""Bytes on a terminal for `FORGED`: as an answer, and as anything else."""


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers every prompt, refuses `refuse`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_refused = body.get("prompt") == "refuse"
        answer = FORGED
        if is_refused:
            answer = json.dumps({"error": {"message": FORGED}})
        elif "messages" in body:
            answer = f"data: {json.dumps({'text': FORGED})}\n\n"
            end = {"finish_reason": FORGED, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            answer += f"data: {json.dumps(end)}\n\n"
        elif not body["stream"]:
            answer = json.dumps({"text": FORGED})
        self.send_response(400 if is_refused else 200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


def shown(*arguments: str) -> str:
    """Run a command in a terminal; return its output, which must not control the terminal."""
    with Terminal(*arguments) as terminal:
        terminal.end()
        return inert(terminal.output)


def inert(output: str) -> str:
    lines = output.replace("\r\n", "").replace("\t", "")
    assert not [letter for letter in lines if not letter.isprintable()], output
    assert "\nready:" not in output.replace(TWO_LINES, "")
    return output


@pytest.mark.parametrize("option", ["--no-stream", "--max-tokens=9"])
def test_an_answer(url: str, option: str) -> None:
    assert shown("predict", "--url", url, option, "Hi") == f"{TWO_LINES}\r\n"


def test_an_answer_in_a_pipe_is_exact(url: str) -> None:
    command = [sys.executable, "-m", "trtllm_truss", "predict", "--url", url, "Hi"]
    assert subprocess.run(command, capture_output=True).stdout == f"{FORGED}\n".encode()


def test_an_error_of_a_server(url: str) -> None:
    output = shown("predict", "--url", url, "refuse")
    assert output == f"error: {ONE_LINE} (HTTP 400)\r\n"


def test_a_conversation(url: str) -> None:
    with Terminal("chat", "--url", url) as terminal:
        terminal.until("Ctrl-D ends.*>")
        terminal.type("Hi\r")
        answer = terminal.until(r"tokens/s\].*>")
        terminal.type("\x04")
        terminal.end()
    answer = answer[answer.index("␛") :]
    assert answer.startswith(TWO_LINES)
    assert ONE_LINE in answer[len(TWO_LINES) :], "the reason comes from the server too"
    assert "\x1b]0" not in answer
    assert "\u202e" not in answer


def test_lmi_settings(tmp_path: Path) -> None:
    file = tmp_path / "serving.properties"
    text = "option.model_id=org/model\noption.foo=\x1b[1A\x9b2K\u202eevil\x7f"
    file.write_text(text, encoding="utf-8")
    output = shown("import-lmi", str(file), "--truss", str(ROOT))
    assert "option.foo=␛[1A\\x9b2K\\u202eevil␡: " in output


def test_a_repository(tmp_path: Path) -> None:
    engine = write_checkpoint(tmp_path / "model", llama(architectures=[FORGED]))
    (engine / "tokenizer.json").write_text("{}")
    (engine / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    output = shown("init", str(engine), "--output", str(tmp_path / "truss"))
    assert output.count("\r\n") == 1, output
    assert output.startswith(f"error: {ONE_LINE} ")


def test_the_command_line() -> None:
    assert f"unrecognized arguments: {ONE_LINE}; name the Truss's" in shown("check", FORGED)


def run_replaced(program: str, *arguments: str) -> tuple[int, list[str]]:
    """Run a command of which a program replaces a part; return its status and stderr's lines."""
    whole = f"from trtllm_truss.cli import main, render\n{program}\nraise SystemExit(main.main())"
    command = [sys.executable, "-c", whole, *arguments]
    ran = subprocess.run(command, capture_output=True, cwd=ROOT)
    return ran.returncode, ran.stderr.decode().splitlines()


def test_a_bug() -> None:
    program = f"def run(options): raise ValueError({FORGED!r})\nrender.run = run"
    status, lines = run_replaced(program, "render", "--output", "x")
    assert status == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == [f"ValueError: {SHOWN}", "ready: POST"]


def streams(module: Path) -> set[str]:
    """Return the calls of a module that write to a standard stream."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return called & {"print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"}


def test_one_module_writes() -> None:
    modules = ROOT.glob("*/trtllm_*/cli/*.py")
    writers = {module.stem for module in modules if streams(module)}
    assert writers == {"common", "chat_terminal"}, "others use cli/common.py"
