"""The prompt of `chat`, without a server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from tests.support.waiting import PATIENCE_S

from trtllm_workbench.cli.chat_terminal import ChatTerminal
from trtllm_workbench.cli.conversation import Conversation

CTRL_D = "\x04"
INTERRUPTED = """
import asyncio, signal
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from trtllm_workbench.cli.chat_terminal import ChatTerminal
from trtllm_workbench.cli.conversation import Conversation

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
construct = asyncio.SelectorEventLoop.__init__
signals = iter([signal.SIGINT])

def interrupted(loop, *arguments):
    for number in signals:
        signal.raise_signal(number)
    construct(loop, *arguments)

asyncio.SelectorEventLoop.__init__ = interrupted
with create_pipe_input() as keys, create_app_session(input=keys):
    keys.send_text("\\x04")
    ChatTerminal(Conversation("http://127.0.0.1:9", {})).run("here")
"""


def test_ctrl_c_while_the_prompt_is_set_up_ends_nothing() -> None:
    """An exception in a loop's constructor leaves a loop that fails when it is deleted.

    In a separate process, because a SIGINT may kill the one that runs the tests.
    """
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Ctrl-D ends.") == 2  # in the greeting, and once more


@pytest.mark.parametrize("enter", ["\r", "\n"], ids=["at the prompt", "during an answer"])
def test_alt_enter_begins_a_line(monkeypatch: pytest.MonkeyPatch, enter: str) -> None:
    """A terminal turns CR into LF while no prompt is there."""
    asked: list[str] = []
    with create_pipe_input() as keys, create_app_session(input=keys):
        keys.send_text(f"in\x1b{enter}one word.{enter}{CTRL_D}")
        terminal = ChatTerminal(Conversation("http://127.0.0.1:9", {}))
        monkeypatch.setattr(terminal, "_handle", asked.append)
        terminal.run("here")
    assert asked == ["in\none word."]
