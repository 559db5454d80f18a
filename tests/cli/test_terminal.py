"""What commands tell, from many threads at once."""

from __future__ import annotations

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
