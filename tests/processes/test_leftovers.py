"""What killed runs leave is removed by the next start; what others use is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.paths import PROGRAMS
from tests.support.triton_server import assert_nothing_left
from tests.support.waiting import settles

from trtllm_truss.processes.leftovers import hold_folder, hold_segments, sweep, temporary_folder
from trtllm_truss.processes.process_guard import marked_processes

HOLDER = """
import sys, time
from trtllm_truss.processes.leftovers import hold_segments, temporary_folder
lock = hold_segments(sys.argv[1], "run")
with temporary_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process and its children put temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def prefix() -> Iterator[str]:
    """Of the names of some segments, which are removed in the end."""
    prefix = f"trtllm_truss_{os.getpid()}_test_"
    yield prefix
    for path in Path("/dev/shm").glob(f"{prefix}*"):
        path.unlink()


def segments(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def test_only_what_nobody_holds_is_removed(temporary: Path, prefix: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, prefix], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        Path(f"/dev/shm/{prefix}0").touch()
        sweep()
        assert (folder / "file").exists()
        assert len(segments(prefix)) == 2
        holder.kill()
    sweep()
    assert not folder.exists()
    assert not segments(prefix)


def test_what_is_not_ours_stays(temporary: Path, prefix: str) -> None:
    checkout = temporary / "trtllm-truss-checkout"
    checkout.mkdir()
    old = temporary / "trtllm_truss_1_00000000_x"  # of a version without locks; in use perhaps
    old.mkdir()
    precious = temporary / "precious"
    precious.mkdir()
    (temporary / "trtllm-truss-link").symlink_to(precious)
    os.close(hold_folder(precious) or 0)
    (temporary / "trtllm-truss-pipe").mkdir()
    os.mkfifo(temporary / "trtllm-truss-pipe/owner.lock")
    Path(f"/dev/shm/{prefix}0").touch()
    sweep()
    assert checkout.exists()
    assert old.exists()
    assert precious.exists()
    assert segments(prefix)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights of root")
def test_what_another_user_owns_stays(temporary: Path) -> None:
    folder = temporary / "trtllm-truss-other"
    folder.mkdir()
    os.close(hold_folder(folder) or 0)
    os.chown(folder / "owner.lock", 65534, 65534)
    sweep()
    assert folder.exists()


def test_a_lock_is_renewed_without_a_gap(temporary: Path) -> None:
    """`serve` holds its folder, then hands it over to the keeper."""
    with temporary_folder() as folder:
        renewed = hold_folder(folder, "run")
        assert renewed is not None
        sweep()
        assert folder.exists()
        os.close(renewed)
        sweep()
        assert not folder.exists()


def test_where_nothing_can_be_locked_nothing_is_swept(temporary: Path) -> None:
    assert hold_folder(temporary / "nowhere") is None
    assert hold_segments("no/where", "run") is None


def kill_owner_and_keeper() -> tuple[str, str]:
    """Return the run id and the prefix of a run that nothing cleaned up."""
    owner = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "owner.py"), "-", "stubborn", "family", "memory"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        run_id, shm_prefix, keeper = owner.stdout.readline().split()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (owner.pid, int(keeper)):
            os.kill(pid, number)
    owner.wait()
    assert settles(lambda: not Path(f"/proc/{keeper}").exists())
    return run_id, shm_prefix


def test_owner_and_keeper_killed_at_once(temporary: Path) -> None:
    for _ in range(3):  # any server that starts on this machine sweeps too, and may be faster
        run_id, shm_prefix = kill_owner_and_keeper()
        family, found = marked_processes(run_id), segments(shm_prefix)
        if family and found:
            break
    assert family
    assert found
    assert list(temporary.iterdir())
    sweep()
    assert_nothing_left(run_id, shm_prefix, within_s=0)
    assert not list(temporary.iterdir())
