"""`chat`: a conversation in the terminal, or one message from a pipe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_truss.cli.common import add_truss_options, echo, write
from trtllm_truss.errors import InvalidRequest, SettingsError
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.cli.conversation import DEFAULT_URL, REQUEST_LINES, URL_HELP, Conversation
from trtllm_workbench.cli.truss_server import TrussServer

_MAX_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help=f"{URL_HELP} (default: {DEFAULT_URL})")
    add_truss_options(parser)
    parser.set_defaults(truss=None)
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_MAX_TOKENS,
        metavar="N",
        help="maximum tokens of an answer (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 makes answers repeatable, and /retry pointless (default: the server's)",
    )
    parser.add_argument("--top-p", type=float, metavar="P", help="default: the server's")
    parser.epilog = (
        "With --truss or --config, a server runs for the duration of the conversation. Without "
        "a terminal, standard input is one message."
    )


def run(options: argparse.Namespace) -> int:
    """Chat with a local or deployed server, or start one.

    Raises:
        InvalidRequest: standard input is empty.
        SettingsError: the options exclude each other.
        StartupError: the server for the conversation did not start.
        TrussError: the message from a pipe got no complete answer.
    """
    given = {"temperature": options.temperature, "top_p": options.top_p}
    sampling = {name: value for name, value in given.items() if value is not None}
    parameters = {"max_tokens": options.max_tokens, **sampling}
    with _server(options) as url:
        conversation = Conversation(url, parameters, options.system)
        if not sys.stdin.isatty():
            return _answer_pipe(conversation)
        try:
            from trtllm_workbench.cli.chat_terminal import ChatTerminal
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"{error.name} is not installed; `pip install prompt_toolkit`, or pipe a message "
                "into `chat`."
            ) from None
        ChatTerminal(conversation).run(f"{url}")
    return 0


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    """Yield a URL, starting a server for it if a Truss is given."""
    if options.truss is None and options.config is None:
        yield options.url or DEFAULT_URL
        return
    if options.url is not None:
        raise SettingsError(
            "--url selects a running server, --truss and --config start one; use one of them."
        )
    is_ready = False

    def show(line: str) -> None:
        if not is_ready or not any(words in line for words in (*REQUEST_LINES, "triton: ")):
            echo(line)

    (port,) = unused_ports(1)
    with TrussServer(options.truss or Path(), options.config, port, show) as server:
        server.wait_until_ready()
        is_ready = True
        yield server.url


def _answer_pipe(conversation: Conversation) -> int:
    """Answer standard input, printing only the text, unmodified unless it goes to a terminal."""
    message = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not message:
        raise InvalidRequest("standard input is empty; pipe a message into `chat`.")
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        summary = conversation.ask(message, write)
        write("\n")
    except BrokenPipeError:  # the reader has enough; Python would complain when flushing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if sys.stderr.isatty():
        echo(str(summary))
    return 0
