"""`demo`: from nothing to a streamed answer and back to nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from trtllm_truss.cli.http_client import post
from trtllm_truss.cli.terminal import tell
from trtllm_truss.cli.truss_server import TrussServer, free_port
from trtllm_truss.errors import TrussError

_MAX_TOKENS = 128
_OF_A_REQUEST = ("Handled request", " request engine_request_id=")


def demo(truss: Path, config: Path | None, question: str) -> int:
    """Serves the Truss on a free port, streams one answer with its timings, and stops.

    Raises:
        StartupError: the Truss did not start.
        TrussError: the answer broke off.
    """
    with TrussServer(truss, config, free_port(), _show) as server:
        server.wait_until_ready()
        print(f"\n> {question}\n", flush=True)
        begun = time.monotonic()
        first_s = 0.0
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": _MAX_TOKENS}
        with post(server.url, body, accept="text/event-stream") as answer:
            for event in answer.events():
                if "error" in event:
                    raise TrussError(event["error"]["message"])
                if "text" in event:
                    first_s = first_s or time.monotonic() - begun
                    sys.stdout.write(event["text"])
                    sys.stdout.flush()
                else:
                    _summary(event, first_s, time.monotonic() - begun)
    return 0


def _summary(finish: dict[str, object], first_s: float, whole_s: float) -> None:
    usage = finish["usage"]
    assert isinstance(usage, dict)
    tokens = usage["completion_tokens"]
    rate = tokens / (whole_s - first_s) if whole_s > first_s else 0.0
    print(
        f"\n\n[{tokens} tokens, finish reason {finish['finish_reason']}; "
        f"first token after {first_s:.2f} s, then {rate:.0f} tokens/s]"
    )


def _show(line: str) -> None:
    if not any(words in line for words in _OF_A_REQUEST):  # they would stand amid the answer
        tell(line)
