"""MPI_Comm_spawn by real mpi4py and Open MPI, as TensorRT-LLM's LLM API starts its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import mpi_prefix

from trtllm_truss.machine.runtime import TritonInstallation, find_mpirun
from trtllm_truss.processes.process_guard import RUN_MARKER, marked_processes
from trtllm_truss.triton.server.command import Launch, launch_environment, server_environment
from trtllm_truss.triton.server.ports import free_ports

PARENT = """
import json, os, sys
from mpi4py.futures import MPIPoolExecutor

workers = int(sys.argv[1])
with MPIPoolExecutor(max_workers=workers, path=sys.path) as pool:
    pools = [pool.submit(os.sched_getaffinity, 0) for _ in range(workers)]
    print(json.dumps([sorted(future.result()) for future in pools]))
"""
"""`MpiPoolSession` of TensorRT-LLM 1.2.1 (tensorrt_llm/llmapi/mpi_session.py), without a main file
as in Triton's stub."""


@pytest.fixture
def launch(tmp_path):
    return Launch(f"spawn_{os.getpid()}", free_ports(), "unused_", tmp_path)


def environment_of(launch, *, spawns=True):
    installation = TritonInstallation(Path("/t"), Path("/b"))
    environment = server_environment(os.environ, installation, spawns=spawns)
    mpirun = find_mpirun(os.environ)
    return {
        **launch_environment(environment, launch),
        **mpi_prefix(mpirun, environment),
        "PATH": f"{mpirun.parent}{os.pathsep}{os.environ['PATH']}",
        RUN_MARKER: launch.run_id,
    }


def test_a_server_of_one_rank_can_spawn_workers(launch, monkeypatch):
    """Open MPI 5 needs `HOME`, which not every container has, and both refuse two lists."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0")
    workers = 2
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, str(workers)],
        env=environment_of(launch),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert json.loads(ended.stdout) == [sorted(os.sched_getaffinity(0))] * workers
    while [*marked_processes(launch.run_id)]:  # MPI's daemon exits after its parent
        time.sleep(0.02)


def test_variables_of_a_spawning_server(launch, monkeypatch):
    environment = environment_of(launch)
    assert "OMPI_MCA_btl" not in environment
    assert environment["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert environment["OMPI_MCA_hwloc_base_binding_policy"] == "none"
    assert environment["OMPI_MCA_rmaps_base_inherit"] == "1"
    assert environment_of(launch, spawns=False)["OMPI_MCA_btl"] == "^tcp"
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0")
    assert "OMPI_MCA_btl_tcp_if_exclude" not in environment_of(launch)
    assert "OMPI_MCA_btl_tcp_if_exclude" in environment_of(launch, spawns=False)
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "eth7")
    assert environment_of(launch)["OMPI_MCA_btl_tcp_if_include"] == "eth7"
