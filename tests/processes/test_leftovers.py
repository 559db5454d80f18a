"""A start removes leftovers of killed runs, but nothing in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.paths import PROGRAMS
from tests.support.triton_server import assert_nothing_left
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.processes import child, process_guard
from trtllm_truss.processes.child import (
    FOLDER_PREFIX,
    lock_folder,
    lock_segments,
    sweep,
    temporary_folder,
)
from trtllm_truss.processes.process_guard import descendants, is_alive, marked_processes

HOLDER = """
import sys, time
from trtllm_truss.processes.child import lock_segments, temporary_folder
lock = lock_segments(sys.argv[1], "run")
with temporary_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the temporary folder of this process and its children."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix for names of segments; remove them after the test."""
    prefix = f"trtllm_truss_{os.getpid()}_test_"
    yield prefix
    for path in Path("/dev/shm").glob(f"{prefix}*"):
        path.unlink()


@pytest.fixture
def own_prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a prefix of runs that no server of another test sweeps, here and in child processes."""
    prefix = f"test_leftovers_{os.getpid()}_"
    monkeypatch.setattr(child, "RUN_PREFIX", prefix)
    monkeypatch.setenv("RUN_PREFIX", prefix)
    return prefix


def segments(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def kill_with_guards(process: subprocess.Popen[str]) -> None:
    """Kill a process and its guards in one instant."""
    pids = (process.pid, *descendants(process.pid))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    process.wait()
    assert settles(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_made_is_removed(
    temporary: Path, prefix: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, prefix], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert Path(holder.stdout.readline().strip(), "file").exists()
        (guard,) = descendants(holder.pid)
        Path(f"/dev/shm/{prefix}0").touch()
        holder.send_signal(number)
    assert settles(lambda: not is_alive(guard))
    assert not list(temporary.iterdir())
    assert not segments(prefix)


ENDED = """
import os, sys, threading
from trtllm_truss.processes.child import GuardedChild, end_everything, lock_folder, make_folder
folder = make_folder("test-")
lock = lock_folder(folder)
run = make_folder("run-")
command = [sys.executable, "-c", "import time; time.sleep(600)"]
options = {"run_id": f"ended_{os.getpid()}", "orphan_grace_s": 60}
child = GuardedChild(command, os.environ, folder=run, **options)
print(child.pid, flush=True)
end_everything()
print(*os.listdir(folder.parent), child.wait(0), sep=",", flush=True)
for begin in (lambda: make_folder("test-"), lambda: GuardedChild(command, os.environ, **options)):
    try:
        begin()
    except RuntimeError as error:
        print(error, flush=True)
folder.mkdir()  # as by a thread that goes on
os._exit(0)
"""


def test_an_exit_without_clean_up_leaves_nothing(temporary: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", ENDED], capture_output=True, text=True, check=True
    )
    guard, left, *refused = process.stdout.splitlines()
    assert not is_alive(int(guard))
    assert left == str(128 + signal.SIGTERM)
    assert refused == ["this process is ending"] * 2
    assert settles(lambda: not list(temporary.iterdir()))


WRITER = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1], "backends/__pycache__")
while True:
    place.mkdir(parents=True, exist_ok=True)
    time.sleep(0.001)
"""
"""Python creates missing folders above the bytecode that it writes."""


def test_a_run_that_writes_on_is_killed_before_its_folder_is_removed(temporary: Path) -> None:
    """The Triton of a killed server lives on for a moment while the next server starts."""
    folder = temporary / f"{FOLDER_PREFIX}0"
    folder.mkdir()
    lock = lock_folder(folder)
    assert lock is not None
    os.close(lock)
    command = [sys.executable, "-c", WRITER]
    environment = {**os.environ, process_guard.RUN_MARKER: "writes"}
    with (
        subprocess.Popen([*command, f"{folder}/"], env=environment) as writer,
        subprocess.Popen([*command, f"{folder}/other"]) as other,  # somebody else's, of no run
    ):
        assert settles((folder / "other").exists)
        other.terminate()
        other.wait()
        sweep()
        writer.terminate()  # too late
        assert writer.wait() == -signal.SIGKILL
    assert other.returncode == -signal.SIGTERM
    assert not folder.exists()


def test_a_child_with_its_temporary_files_in_the_folder_is_killed(temporary: Path) -> None:
    """Such as the check of guides, whose command line names no folder."""
    folder = temporary / f"{FOLDER_PREFIX}0"
    folder.mkdir()
    os.close(lock_folder(folder) or 0)
    environment = {**os.environ, "TMPDIR": str(folder / "guides")}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, env=environment) as child:
        assert settles(lambda: b"TMPDIR" in Path(f"/proc/{child.pid}/environ").read_bytes())
        sweep()
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    assert not folder.exists()


FILE_WRITER = """
import contextlib, pathlib, sys
while True:
    with contextlib.suppress(OSError):
        pathlib.Path(sys.argv[1]).touch()
"""


def test_a_folder_with_an_unknown_writer(temporary: Path) -> None:
    """A child that was being started when its server died cannot be found yet."""
    folder = temporary / f"{FOLDER_PREFIX}0"
    folder.mkdir()
    os.close(lock_folder(folder) or 0)
    with subprocess.Popen([sys.executable, "-c", FILE_WRITER, str(folder / "file")]) as writer:
        assert settles((folder / "file").exists)
        threading.Timer(0.2, writer.kill).start()
        sweep()
        assert not folder.exists()


def test_a_folder_that_cannot_be_removed_is_tried_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = temporary / f"{FOLDER_PREFIX}0"
    folder.mkdir()
    os.close(lock_folder(folder) or 0)
    with monkeypatch.context() as failing:
        failing.setattr(child, "_FOLDER_LIMIT_S", 0.1)
        failing.setattr(child.shutil, "rmtree", lambda *_, **__: None)
        sweep()
    assert f"files are still written there: '{folder}'" in caplog.text
    sweep()
    assert not folder.exists()


def test_only_unlocked_runs_are_removed(temporary: Path, prefix: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, prefix], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        Path(f"/dev/shm/{prefix}0").touch()
        sweep()
        assert (folder / "file").exists()
        assert len(segments(prefix)) == 2
        kill_with_guards(holder)
    sweep()
    assert not folder.exists()
    assert not segments(prefix)


def test_foreign_files_stay(temporary: Path, prefix: str) -> None:
    checkout = temporary / "trtllm-truss-checkout"
    checkout.mkdir()
    old = temporary / "trtllm_truss_1_00000000_x"  # of a version without locks; possibly in use
    old.mkdir()
    precious = temporary / "precious"
    precious.mkdir()
    (temporary / "trtllm-truss-link").symlink_to(precious)
    os.close(lock_folder(precious) or 0)
    (temporary / "trtllm-truss-pipe").mkdir()
    os.mkfifo(temporary / "trtllm-truss-pipe/owner.lock")
    Path(f"/dev/shm/{prefix}0").touch()
    sweep()
    assert checkout.exists()
    assert old.exists()
    assert precious.exists()
    assert segments(prefix)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights of root")
def test_folders_of_another_user_stay(temporary: Path) -> None:
    folder = temporary / "trtllm-truss-other"
    folder.mkdir()
    os.close(lock_folder(folder) or 0)
    os.chown(folder / "owner.lock", 65534, 65534)
    sweep()
    assert folder.exists()


def test_a_lock_is_renewed_without_a_gap(temporary: Path) -> None:
    """Pass the lock from `serve` to the guard."""
    with temporary_folder() as folder:
        renewed = lock_folder(folder, "run")
        assert renewed is not None
        sweep()
        assert folder.exists()
        os.close(renewed)
        sweep()
        assert not folder.exists()


def test_where_nothing_can_be_locked_nothing_is_swept(temporary: Path) -> None:
    assert lock_folder(temporary / "nowhere") is None
    assert lock_segments("no/where", "run") is None


def kill_owner_and_guard() -> tuple[str, str]:
    """Kill a run without cleanup; return its run id and prefix."""
    owner = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "owner.py"), "-", "stubborn", "family", "memory"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        run_id, shm_prefix, guard = owner.stdout.readline().split()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (owner.pid, int(guard)):
            os.kill(pid, number)
    owner.wait()
    assert settles(lambda: not Path(f"/proc/{guard}").exists())
    return run_id, shm_prefix


def test_owner_and_guard_killed_at_once(temporary: Path, own_prefix: str) -> None:
    run_id, shm_prefix = kill_owner_and_guard()
    assert shm_prefix.startswith(own_prefix)
    assert marked_processes(run_id)
    assert segments(shm_prefix)
    assert list(temporary.iterdir())
    sweep()
    assert_nothing_left(run_id, shm_prefix, within_s=0)
    assert not list(temporary.iterdir())
