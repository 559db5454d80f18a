"""`demo`: start a server, stream one answer, stop the server."""

from __future__ import annotations

import argparse

from trtllm_truss.cli.common import add_truss_options, echo, write
from trtllm_truss.literals import one_line
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.cli.conversation import REQUEST_LINES, stream_answer
from trtllm_workbench.cli.truss_server import TrussServer
from trtllm_workbench.cli.wrapping import answer_writer

_MAX_TOKENS = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument("--prompt", default="What is machine learning?", help="the question")


def run(options: argparse.Namespace) -> int:
    """Serve the Truss on a free port, stream one answer with its timings, and stop.

    Raises:
        StartupError: the Truss did not start.
        TrussError: the response was cut off.
    """
    (port,) = unused_ports(1)
    messages = [{"role": "user", "content": options.prompt}]
    with TrussServer(options.truss, options.config, port, _show) as server:
        server.wait_until_ready()
        write(f"\n> {options.prompt}\n\n")
        body = {"messages": messages, "max_tokens": _MAX_TOKENS}
        with answer_writer() as show:
            summary = stream_answer(server.url, body, show)
        write(f"\n\n{one_line(str(summary))}\n")
    return 0


def _show(line: str) -> None:
    if not any(words in line for words in REQUEST_LINES):  # these would interrupt the answer
        echo(line)
