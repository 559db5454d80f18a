"""Ranks that another launcher starts: `mpirun` over two hosts, and a stand-in of `srun --mpi=pmix`.

The stand-in is Open MPI 5's `mpirun`, which is a server of PMIx, with Slurm's variables in place of
Open MPI's, as Slurm 22.05.8 set them for a step with one task on each of two hosts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import (
    COUNTING,
    PROGRAMS,
    VERSIONS,
    config_for_checkpoint,
    fake_library,
    open_mpi,
    write_checkpoint,
)
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.network import PORT, Host, Network, missing_right
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_file
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.processes.child import sweep

AGENT = """#!/bin/sh
# Runs a command of mpirun's on a host: HOST COMMAND…
host=$1; shift
name={network}-$((${{host##*.}} - 1))
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
"""
SRUN = """#!/bin/sh
# Makes a rank of mpirun's look like a task of srun's: COMMAND…
export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NNODES=2 SLURM_MPI_TYPE=pmix
export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_LOCALID=$OMPI_COMM_WORLD_LOCAL_RANK
export SLURM_NTASKS=$OMPI_COMM_WORLD_SIZE SLURM_STEP_NUM_TASKS=$OMPI_COMM_WORLD_SIZE
export SLURM_STEP_TASKS_PER_NODE="1(x2)"
for name in $(env | sed -nE 's/^((OMPI|PRTE)_[A-Za-z0-9_]*)=.*/\\1/p'); do unset "$name"; done
exec "$@"
"""
LAUNCHERS = {"mpirun": "", "srun": SRUN}


def launching_by(agent: Path) -> dict[str, str]:
    """Return the options with which `mpirun` starts its daemons by a program, and uses `eth0`."""
    interfaces = ("PRTE_MCA_oob_tcp", "OMPI_MCA_oob_tcp", "OMPI_MCA_btl_tcp")
    return {
        **{f"{name}_if_include": "eth0" for name in interfaces},
        **dict.fromkeys(("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"), str(agent)),
        **dict.fromkeys(("PRTE_MCA_plm_ssh_no_tree_spawn", "OMPI_MCA_plm_rsh_no_tree_spawn"), "1"),
    }


class Job:
    """A launcher's job of `serve`, one rank on each host of a network; the first one serves."""

    def __init__(
        self,
        network: Network,
        config: Path,
        folder: Path,
        launcher: str,
        variables: Mapping[str, str],
    ) -> None:
        self.first, *_ = self.hosts = network.hosts
        agent = _program(folder / "agent", AGENT.format(network=network.name))
        wrapper = LAUNCHERS[launcher]
        environment = {
            **os.environ,
            **open_mpi(),
            **variables,
            **launching_by(agent),
            "PATH": os.pathsep.join((str(PROGRAMS), open_mpi()["PATH"], os.environ["PATH"])),
        }
        places = ",".join(f"{host.address}:1" for host in self.hosts)
        serve = [sys.executable, "-m", "trtllm_truss.cli.main", "serve", "--truss", str(ROOT)]
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                *("sh", str(agent), self.first.address, "exec", "mpirun", "--allow-run-as-root"),
                *("--host", places, "-n", str(len(self.hosts)), "--bind-to", "none"),
                *([str(_program(folder / "srun", wrapper))] if wrapper else []),
                *(*serve, "--config", str(config), "--port", str(PORT)),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def ranks(self) -> list[int]:
        """Return the launcher's own children, the lowest rank first."""
        return [_child_of_launcher(host) for host in self.hosts]

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.wait()
        self._log.close()
        # The launcher kills ranks; their process guards clean up, and the next start does.
        assert settles(lambda: not any(host.processes() for host in self.hosts))
        sweep()


def _program(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def _child_of_launcher(host: Host) -> int:
    serves = f"{sys.executable} -m trtllm_truss.cli.main serve"
    (pid,) = (pid for pid, line in host.processes().items() if line.startswith(serves))
    return pid


@contextlib.contextmanager
def job_of(
    folder: Path, launcher: str, config: Path, variables: Mapping[str, str] = FAKE_ENGINE
) -> Iterator[Job]:
    if reason := missing_right():
        pytest.skip(reason)
    with Network(2) as network:
        job = Job(network, config, folder, launcher, variables)
        try:
            yield job
        finally:
            job.end()
            assert not {host.name: host.processes() for host in job.hosts if host.processes()}


def engine_of_two(folder: Path, **behaviour: object) -> Path:
    return config_for(write_engine(folder / "engine", tp=2, mpi=1, step_ms=5, **behaviour), 2)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher_serve_and_drain(tmp_path: Path, launcher: str) -> None:
    """SIGTERM reaches all ranks at once; the others stay as long as rank 0 needs them."""
    with job_of(tmp_path, launcher, engine_of_two(tmp_path)) as job:
        assert settles(lambda: job.first.is_healthy() or job.process.poll() is not None)
        assert job.first.answers_right(), job.log
        assert [len(host.ranks()) for host in job.hosts] == [1, 1]
        for host, is_first in zip(job.hosts, (True, False), strict=True):
            assert any(f":{PORT} " in line for line in host.sockets("-l")) is is_first
        started, stream = job.first.stream(100)
        assert started.wait(PATIENCE_S)
        for pid in reversed(job.ranks()):
            os.kill(pid, signal.SIGTERM)
        assert stream.result(PATIENCE_S) == "whole"


def test_a_dead_rank_ends_the_job(tmp_path: Path) -> None:
    """There is no restart in place."""
    with job_of(tmp_path, "srun", engine_of_two(tmp_path)) as job:
        assert settles(lambda: job.first.is_healthy() or job.process.poll() is not None)
        started, stream = job.first.stream(1900)
        assert started.wait(PATIENCE_S), job.log
        os.kill(job.hosts[0].ranks()[0], signal.SIGKILL)
        assert stream.result(PATIENCE_S) == "cut"
        assert job.wait() != 0


def is_connected(host: Host) -> bool:
    """Return whether a host's engine has a connection; it only connects to MPI."""
    return any('"triton_python_b"' in line for line in host.sockets())


def test_a_rank_that_cannot_load_ends_the_job(tmp_path: Path) -> None:
    """Late: prterun of 5.0.11 may hang if one rank exits while another connects to it."""
    loads = tmp_path / "loads"
    config = engine_of_two(tmp_path, ranks={1: {"load_after": loads, "load_error": "no memory"}})
    with job_of(tmp_path, "mpirun", config) as job:
        assert settles(lambda: is_connected(job.hosts[0])), job.log
        loads.touch()
        assert job.wait() != 0
        assert "Triton failed to load a model" in job.log or "no memory" in job.log


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_checkpoint_is_served_under_tensorrt_llms_launcher(tmp_path: Path, launcher: str) -> None:
    folder = write_checkpoint(tmp_path / "model", smollm2_file(), step_ms=20)
    config = config_for_checkpoint(folder, pipeline_parallelism=2)
    variables = {**fake_library(VERSIONS[0]), **COUNTING}
    with job_of(tmp_path, launcher, config, variables) as job:
        assert settles(lambda: job.first.is_healthy() or job.process.poll() is not None)
        assert job.first.answers_right(), job.log
        assert [len(host.ranks()) for host in job.hosts] == [1, 0]
        os.kill(job.hosts[0].ranks()[0], signal.SIGKILL)
        assert job.wait() != 0
