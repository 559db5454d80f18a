"""`predict`: one answer, streamed to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trtllm_truss.cli.http_client import post


def predict(
    url: str,
    prompt: str,
    *,
    chat: bool,
    max_tokens: int | None,
    stop: Sequence[str],
    stream: bool,
) -> int:
    """Prints the answer of a local or deployed Truss as it comes.

    Raises:
        TrussError: the server cannot be reached, refused, or broke the answer off.
    """
    body: dict[str, object] = {"stream": stream}
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if stop:
        body["stop_words"] = list(stop)
    with post(url, body) as answer:
        if stream:
            for text in answer.texts():
                sys.stdout.write(text)
                sys.stdout.flush()
        else:
            sys.stdout.write(str(answer.json()["text"]))
    print()
    return 0
