"""`demo`: start a server, stream one answer, stop the server."""

from __future__ import annotations

import argparse
import sys

from trtllm_truss.cli.answers import REQUEST_LINES, stream_answer
from trtllm_truss.cli.common import add_truss_options, echo
from trtllm_truss.cli.truss_server import TrussServer
from trtllm_truss.triton.server.ports import unused_ports

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
        print(f"\n> {options.prompt}\n", flush=True)
        body = {"messages": messages, "max_tokens": _MAX_TOKENS}
        summary = stream_answer(server.url, body, _write)
        print(f"\n\n{summary}")
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _show(line: str) -> None:
    if not any(words in line for words in REQUEST_LINES):  # these would interrupt the answer
        echo(line)
