"""A download may be killed at any moment; the files used afterwards are complete.

`KILL_ROUNDS` sets how often: 20 is what this was built for, the suite does fewer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fakes.hub.server import HubServer, hub_server

from trtllm_truss.artifacts.cache import begun_bytes

PROGRAM = Path(__file__).with_name("fetching_process.py")
pytestmark = pytest.mark.server
ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
CONFIG = b"{}"
RANK_BYTES = 3_000_000
RANKS = [f"rank{rank}.engine" for rank in range(4)]


def start(hub: HubServer, home: Path, range_bytes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, "org/engine", "config.json", *RANKS],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "RANGE_BYTES": str(range_bytes),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def arrived(home: Path) -> bool:
    """Return whether the beginning of a rank is on the disk, which is later than sent."""
    for path in home.rglob("*.incomplete"):
        with contextlib.suppress(OSError), path.open("rb") as unfinished:
            if begun_bytes(unfinished.fileno(), RANK_BYTES) > len(CONFIG):
                return True
    return any(home.rglob("rank*.engine"))


def read(output: str) -> dict[str, str]:
    """Return the files that a process printed, by name."""
    return dict(line.split() for line in output.splitlines() if len(line.split()) == 2)


@pytest.mark.parametrize("range_bytes", [1 << 26, 300_000], ids=["one-range", "ranges"])
@pytest.mark.parametrize(
    "round_", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, ROUNDS))]
)
def test_killed_at_a_random_point(round_: int, range_bytes: int, tmp_path: Path) -> None:
    chance = random.Random(round_)
    files = {"config.json": CONFIG, **{name: chance.randbytes(RANK_BYTES) for name in RANKS}}
    total = sum(map(len, files.values()))
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    with hub_server() as hub:
        hub.add("org/engine", files)
        hub.bytes_per_s = 20e6
        for _ in range(2):
            hub.forget()
            process = start(hub, tmp_path, range_bytes)
            enough = chance.uniform(0.02, 0.45) * total
            while process.poll() is None:
                if hub.sent("/files/*") >= enough and arrived(tmp_path):
                    break
                time.sleep(0.002)
            process.kill()
            output, _ = process.communicate()
            assert read(output).items() <= expected.items(), "it was used before it was whole"
        hub.bytes_per_s = None
        hub.forget()
        with start(hub, tmp_path, range_bytes) as process:
            output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert read(output) == expected
        assert hub.sent("/files/*") < total, "nothing of what had arrived was kept"
    left = [path.name for path in tmp_path.rglob("*.incomplete")]
    assert left == []
