"""`predict`: stream one answer to the terminal."""

from __future__ import annotations

import argparse

from trtllm_truss.cli.common import write
from trtllm_workbench.cli.conversation import DEFAULT_URL, URL_HELP, post
from trtllm_workbench.cli.wrapping import answer_writer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"{URL_HELP} (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="maximum number of generated tokens"
    )
    parser.add_argument(
        "--stop", action="append", metavar="WORD", help="stop before this word; may be repeated"
    )
    parser.add_argument("--chat", action="store_true", help="send PROMPT as a chat message")
    parser.add_argument("--no-stream", action="store_true", help="print the whole answer at once")


def run(options: argparse.Namespace) -> int:
    """Print the response of a local or deployed Truss as it arrives.

    Raises:
        TrussError: the server is unreachable, refused the request or cut the response off.
    """
    body: dict[str, object] = {"stream": not options.no_stream}
    if options.chat:
        body["messages"] = [{"role": "user", "content": options.prompt}]
    else:
        body["prompt"] = options.prompt
    if options.max_tokens is not None:
        body["max_tokens"] = options.max_tokens
    if options.stop:
        body["stop_words"] = options.stop
    with post(options.url, body) as answer, answer_writer() as show:
        for text in [str(answer.json()["text"])] if options.no_stream else answer.texts():
            show(text)
    write("\n")
    return 0
