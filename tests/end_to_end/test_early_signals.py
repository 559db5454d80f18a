"""A signal at any point of a start stops the command without leftovers."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.paths import EXAMPLE, ROOT
from tests.support.truss_process import free_port
from tests.support.waiting import PATIENCE_S
from tests.support.warm_python import WarmProcess

Point = Callable[[Path], bool]
"""A test of a start's temporary folder: true once the start has reached the point."""


def holds(count: int) -> Point:
    """Return a point reached with `count` files and folders.

    The start removes folders meanwhile, at which `rglob` raises and `walk` does not.
    """
    return lambda temporary: (
        sum(len(names) + len(files) for _, names, files in os.walk(temporary)) >= count
    )


def has(pattern: str) -> Point:
    return lambda temporary: any(temporary.glob(pattern))


POINTS = {
    "the folder": has("trtllm-truss-*"),
    "half of the layout": holds(120),
    "the server's temporary files": has("*/tmp"),
    "Triton's folder": has("*/tmp/trtllm_truss_*"),
}


@pytest.fixture
def temporary(temporary: Path) -> Iterator[Path]:
    yield temporary
    assert not processes_with(temporary)


def processes_with(temporary: Path) -> list[str]:
    """Return the command lines of processes whose environment contains the temporary folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(temporary).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


def ended(command: list[str], temporary: Path, point: Point, number: int) -> tuple[int, str]:
    """Signal a start at a point; return its exit status and standard error."""
    with tempfile.TemporaryFile("w+") as errors:
        process = WarmProcess(
            ["trtllm_truss", *command, "--truss", str(ROOT)],
            stderr=errors,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        deadline = time.monotonic() + PATIENCE_S
        while not point(temporary):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(number)
        status = process.wait(PATIENCE_S)
        errors.seek(0)
        return status, errors.read()


@pytest.mark.parametrize("point", POINTS)
def test_sigterm_while_serve_starts(temporary: Path, point: str) -> None:
    command = ["serve", "--config", str(EXAMPLE), "--port", str(free_port())]
    status, errors = ended(command, temporary, POINTS[point], signal.SIGTERM)
    assert status == 0, errors


@pytest.mark.parametrize(
    ("point", "number"),
    [
        pytest.param("the folder", signal.SIGTERM, marks=pytest.mark.thorough),
        ("half of the layout", signal.SIGINT),
        ("Triton's folder", signal.SIGTERM),
    ],
)
def test_a_signal_while_demo_starts(temporary: Path, point: str, number: int) -> None:
    status, errors = ended(["demo", "--config", str(EXAMPLE)], temporary, POINTS[point], number)
    assert status == 128 + number, errors
    assert "Traceback" not in errors
