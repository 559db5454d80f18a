"""What commands tell, from many threads at once."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import threading
from trtllm_truss.cli.terminal import tell

def talk(name):
    for _ in range(2000):
        tell(name * 20)

threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lines_stay_whole() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True).stderr
    lines = said.decode().splitlines()
    assert len(lines) == 8000
    assert set(lines) == {name * 20 for name in "abcd"}


def test_a_reader_that_has_gone_ends_nothing() -> None:
    program = (
        "from trtllm_truss.cli.terminal import tell\nfor _ in range(3): tell('x')\nprint('on')"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=nobody)
    assert ran.stdout == b"on\n"
