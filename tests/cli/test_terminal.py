"""Lines on standard error, from many threads at once."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import threading
from trtllm_truss.cli.common import echo

def talk(name):
    for _ in range(2000):
        echo(name * 20)

threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lines_stay_whole() -> None:
    written = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True
    ).stderr
    lines = written.decode().splitlines()
    assert len(lines) == 8000
    assert set(lines) == {name * 20 for name in "abcd"}


def test_a_closed_standard_error_drops_lines() -> None:
    program = "from trtllm_truss.cli.common import echo\nfor _ in range(3): echo('x')\nprint('on')"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=closed)
    assert ran.stdout == b"on\n"
