"""The engine's files are read into the page cache during the start."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from trtllm_truss.serving import read_ahead
from trtllm_truss.serving.read_ahead import ReadAhead

BLOCK = 1000
Reads = list[tuple[str, int, int]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Return names, offsets and lengths of the blocks that are read, in small blocks."""
    found: Reads = []
    real = read_ahead._read_block

    def read(null: int, descriptor: int, start: int, count: int) -> int:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        found.append((name, start, count))
        return real(null, descriptor, start, count)

    monkeypatch.setattr(read_ahead, "_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(read_ahead, "_read_block", read)
    return found


def write(folder: Path, **sizes: int) -> list[Path]:
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    return [folder / name for name in sizes]


def begun(files: list[Path], free: int | None = None) -> ReadAhead:
    ahead = ReadAhead(lambda: free)
    ahead.begin(files)
    ahead.wait()
    return ahead


def test_each_byte_is_read_once(tmp_path: Path, reads: Reads) -> None:
    ahead = begun([*write(tmp_path, a=2 * BLOCK + 1, b=BLOCK, c=0), tmp_path / "missing"])
    wanted = [("a", 0, BLOCK), ("a", BLOCK, BLOCK), ("a", 2 * BLOCK, 1), ("b", 0, BLOCK)]
    assert sorted(reads) == wanted
    assert ahead.done_bytes == 3 * BLOCK + 1


def test_little_memory_takes_the_beginning_of_every_file(tmp_path: Path, reads: Reads) -> None:
    files = write(tmp_path, a=9 * BLOCK, b=9 * BLOCK)
    ahead = begun(files, free=int(3 * BLOCK / read_ahead._SHARE_OF_FREE))
    assert sorted(reads) == [("a", 0, BLOCK), ("a", BLOCK, BLOCK), ("b", 0, BLOCK)]
    assert ahead.done_bytes == 3 * BLOCK
    assert begun(files, free=0).done_bytes == 0


def test_an_end_of_the_start_ends_the_reading(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    real = read_ahead._read_block

    def wait(*block: int) -> int:
        goes_on.wait()
        return real(*block)

    monkeypatch.setattr(read_ahead, "_read_block", wait)
    ahead = ReadAhead(lambda: None)
    ahead.begin(write(tmp_path, a=100 * BLOCK))
    ahead.close()
    goes_on.set()
    ahead.wait()
    assert len(reads) <= read_ahead._THREADS


def test_a_file_system_without_sendfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuse)
    assert begun(write(tmp_path, a=12345)).done_bytes == 12345


def test_no_descriptor_is_left_open(tmp_path: Path, reads: Reads) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    begun(write(tmp_path, a=5 * BLOCK))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
