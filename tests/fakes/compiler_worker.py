"""A fake compiler worker: each guide is a command that reproduces an effect of XGrammar.

The text of a guide is a command and its argument: `note FILE` appends a line to a file, `wait
FILE` waits until the file exists, `burn` computes for an hour, `grow` takes longer with each token,
`crawl` takes the same long time for each, `raise WORDS`, `overflow`, `hold MEBIBYTES`,
`allocate`, `crash`, `killed`. Arguments of the program break it: `broken FILE`, which
appends a line to a file, `raises`, `crashes`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trtllm_truss.guides.compiler_worker import Follow, serve
from trtllm_truss.requests import Guide


def load() -> Follow:
    if "broken" in sys.argv:
        with Path(sys.argv[-1]).open("a") as file:
            file.write("started\n")
        sys.stderr.write("Traceback\nModuleNotFoundError: No module named 'torch'\n")
        sys.exit(3)
    if "busy" in sys.argv:
        threading.Thread(target=compute_with_lock).start()
    return fail if "raises" in sys.argv or "crashes" in sys.argv else follow


def fail(guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
    if "crashes" in sys.argv:
        os.kill(os.getpid(), signal.SIGSEGV)
    raise RuntimeError("no memory for the vocabulary")


def compute_with_lock() -> None:
    with LOCK:
        compute(0.5)


def follow(guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
    order, _, argument = guide.text.partition(" ")
    sys.stderr.write(f"a library repeats {guide.text}\n")
    with LOCK:
        pass
    if order == "note" and tokens == 1:
        with Path(argument).open("a") as file:
            file.write("compiled\n")
    elif order == "wait":
        while not Path(argument).exists():
            time.sleep(0.01)
    elif order == "raise":
        raise RuntimeError(f"[12:34:56] /build/cpp/parser.cc:73: {argument}\nmore of it")
    elif order == "overflow":
        raise OverflowError
    elif order == "allocate":
        bytearray(1 << 40)
    elif order in DEATHS:
        os.kill(os.getpid(), DEATHS[order])
    elif order == "hold" and tokens == 1:
        KEPT.append(b"\1" * (int(argument) << 20))
    for number in range(tokens):
        compute({"grow": 1e-6 * number**2, "crawl": 0.03, "burn": 3600}.get(order, 0))
        on_token()


KEPT: list[bytes] = []
LOCK = threading.Lock()
DEATHS = {"crash": signal.SIGSEGV, "killed": signal.SIGKILL}


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(1000):
            pass


if __name__ == "__main__":
    serve(load, brackets_only=True)
