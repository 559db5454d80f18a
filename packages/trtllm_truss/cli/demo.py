"""`demo`: start a server, stream one answer, stop the server."""

from __future__ import annotations

import argparse
import sys
import time

from trtllm_truss.cli.common import add_truss_options, echo
from trtllm_truss.cli.http_client import post
from trtllm_truss.cli.truss_server import TrussServer
from trtllm_truss.errors import TrussError
from trtllm_truss.triton.server.ports import unused_ports

_MAX_TOKENS = 128
_REQUEST_LINES = ("Handled request", " request engine_request_id=")


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
    with TrussServer(options.truss, options.config, port, _show) as server:
        server.wait_until_ready()
        print(f"\n> {options.prompt}\n", flush=True)
        start = time.monotonic()
        first_s = 0.0
        messages = [{"role": "user", "content": options.prompt}]
        body = {"messages": messages, "max_tokens": _MAX_TOKENS}
        with post(server.url, body, accept="text/event-stream") as answer:
            for event in answer.events():
                if "error" in event:
                    raise TrussError(event["error"]["message"])
                if "text" in event:
                    first_s = first_s or time.monotonic() - start
                    sys.stdout.write(event["text"])
                    sys.stdout.flush()
                else:
                    _print_summary(event, first_s, time.monotonic() - start)
    return 0


def _print_summary(finish: dict[str, object], first_s: float, whole_s: float) -> None:
    usage = finish["usage"]
    assert isinstance(usage, dict)
    tokens = usage["completion_tokens"]
    rate = tokens / (whole_s - first_s) if whole_s > first_s else 0.0
    print(
        f"\n\n[{tokens} tokens, finish reason {finish['finish_reason']}; "
        f"first token after {first_s:.2f} s, then {rate:.0f} tokens/s]"
    )


def _show(line: str) -> None:
    if not any(words in line for words in _REQUEST_LINES):  # these would interrupt the answer
        echo(line)
