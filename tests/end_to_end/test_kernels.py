"""Servers with one cache folder tune and compile once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_llm_api import COUNTING, VERSIONS, serve_checkpoint, write_checkpoint
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import Served
from tests.support.waiting import settles

pytestmark = pytest.mark.server

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
"""Of a SmolLM2 that two workers can share."""


class Fleet:
    """Servers of one checkpoint and one `HF_HOME`.

    Attributes:
        log: a line for each kernel that was tuned or compiled.
        kept: the folder of kernels.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.kept = folder / "home/trtllm-truss/kernels"
        self._checkpoint = folder / "checkpoint"
        self._home = folder / "home"
        write_checkpoint(self._checkpoint, smollm2_file(), HEADS, log=str(self.log))
        self.servers: list[Served] = []

    def start(self) -> Served:
        served = serve_checkpoint(
            self._checkpoint,
            VERSIONS[0],
            {**COUNTING, "HF_HOME": str(self._home), "HOME": str(self._home)},
            tensor_parallelism=2,
            serving={"keep_kernels": True},
        )
        self.servers.append(served)
        return served

    def computed(self) -> list[str]:
        """Return what was computed since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(lines)

    def archive(self) -> Path:
        assert settles(lambda: len(list(self.kept.glob("*.tar"))) == 1)
        return next(self.kept.glob("*.tar"))


ALL = ["compiled rank 0", "compiled rank 1", "tuned rank 0", "tuned rank 1"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for served in fleet.servers:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.mark.thorough
def test_servers_tune_and_compile_once_and_survive_damage(fleet: Fleet) -> None:
    together = [fleet.start(), fleet.start()]
    for served in together:
        served.wait_until_ready()
    computed = fleet.computed()
    # Their folders differ while both live, and Triton's compiler finds kernels by absolute path.
    assert [line for line in computed if line.startswith("tuned")] == ALL[2:]
    assert sum("kernels of an earlier start" in served.log for served in together) == 1
    archive = fleet.archive()
    for served in together:
        assert served.end() == 0
        assert not served.leftovers()

    later = fleet.start().wait_until_ready()
    assert fleet.computed() == [], later.log
    assert "kernels of an earlier start" in later.log
    assert later.end() == 0

    archive.write_bytes(archive.read_bytes()[:5000])
    after = fleet.start().wait_until_ready()
    assert fleet.computed() == ALL
    assert "removing" in after.log
    assert settles(lambda: "kept the kernels" in after.log)
    assert after.end() == 0
