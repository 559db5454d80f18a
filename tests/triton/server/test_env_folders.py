"""A run removes only its folders of Triton's Python backend in /tmp."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.triton_server import changed_s, left_alone
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.processes.process_guard import marked_processes, remove_env_folders
from trtllm_truss.triton.server.process import ServerProcess, State

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def env_folders(server: ServerProcess) -> set[Path]:
    """Return folders created between the starts of the server's Triton and its stub."""
    assert server.launch is not None
    begun_s: dict[str, float] = {}
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid in marked_processes(server.launch.run_id):
        name, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[::2]
        begun_s[name.partition("(")[2]] = booted_s + int(fields.split()[19]) * TICK_S
    first_s, last_s = begun_s["tritonserver"] - TICK_S, begun_s["triton_python_b"] + TICK_S
    folders = changed_s(Path("/tmp").glob("python_env_*"))
    return {path for path, made_s in folders.items() if first_s < made_s < last_s}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder like the backend's, whose creator is dead."""
    folder = Path(tempfile.mkdtemp(prefix="python_env_", dir="/tmp"))
    yield folder
    for path in folder.iterdir() if folder.exists() else ():
        path.unlink()
    if folder.exists():
        folder.rmdir()


@pytest.mark.parametrize("end", ["stop", "kill -9 of the guard", "kill -9 of Triton"])
def test_no_end_leaves_a_folder(make_triton, end: str) -> None:
    server: ServerProcess = make_triton()
    folders = env_folders(server)
    assert folders
    if end == "stop":
        server.stop(0)
    elif end == "kill -9 of the guard":
        os.kill(server.pid, signal.SIGKILL)
    else:
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in
                 marked_processes(server.launch.run_id)}  # fmt: skip
        os.kill(next(pid for pid, name in names.items() if name == "tritonserver\n"), 9)
    assert settles(lambda: server.state in (State.STOPPED, State.DEAD))
    assert settles(lambda: not left_alone(folders))  # the last of several runs removes all


def test_a_living_triton_keeps_its_folder(make_triton) -> None:
    """Triton aborts on exit if its folder is missing."""
    first, second = make_triton(ready_s=None), make_triton(ready_s=None)
    first.wait_until_ready(PATIENCE_S)
    second.wait_until_ready(PATIENCE_S)
    of_first, of_second = env_folders(first), env_folders(second)
    first.stop(0)
    assert of_second
    assert all(folder.exists() for folder in of_second)
    second.stop(0)  # of several with the same start time, the last one removes all folders
    assert settles(lambda: not left_alone(of_first | of_second))


def test_folders_in_use_or_older_stay(folder: Path) -> None:
    now_s = time.time()
    remove_env_folders(now_s + 60)
    assert folder.exists()
    (folder / "environment").touch()
    remove_env_folders(now_s - 60)
    assert folder.exists()
    (folder / "environment").unlink()
    remove_env_folders(now_s - 60)
    assert not left_alone([folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights of root")
def test_folders_of_another_user_stay(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    remove_env_folders(time.time() - 60)
    assert folder.exists()
