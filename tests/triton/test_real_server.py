"""Real Triton as a child: how it starts, fails, dies and is found to listen."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from scripted_triton import assert_nothing_left

from trtllm_truss.errors import TritonError
from trtllm_truss.triton.keeper import marked_processes
from trtllm_truss.triton.process import State


def test_listens_on_loopback_only(triton):
    ports = triton.process.launch.ports
    listening = [
        line.split()[1].rpartition(":")
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    loopback = "0100007F"  # or as gRPC has it, mapped into IPv6: ::ffff:127.0.0.1
    for wanted in (ports.grpc, ports.http, ports.metrics):
        (address,) = [host for host, _, port in listening if int(port, 16) == wanted]
        assert address in (loopback, "0000000000000000FFFF0000" + loopback)


def test_shared_memory_has_our_prefix(triton):
    assert list(Path("/dev/shm").glob(f"{triton.process.launch.shm_prefix}0_*"))


def test_model_that_cannot_load_is_told(make_triton):
    failed = make_triton(ready_s=None, load_error="no such engine file: rank0.engine")
    with pytest.raises(TritonError, match=r"exited with code 1.*no such engine file"):
        failed.process.wait_until_ready(20)
    assert failed.process.state is State.DEAD


def test_stub_that_dies_while_loading_is_told(make_triton):
    failed = make_triton(ready_s=None, load_exit=9)
    with pytest.raises(TritonError, match="Stub process"):
        failed.process.wait_until_ready(20)


def test_slow_model_meets_the_deadline(make_triton):
    slow = make_triton(ready_s=None, load_s=60)
    begun = time.monotonic()
    with pytest.raises(TritonError, match="not ready after 1 s"):
        slow.process.wait_until_ready(1)
    slow.process.stop(0)
    assert time.monotonic() - begun < 30
    assert_nothing_left(slow.process.launch.run_id, slow.process.launch.shm_prefix, 0.5)


@pytest.mark.parametrize("victim", ["keeper", "tritonserver", "stub"])
def test_kill_9_leaves_nothing(make_triton, victim):
    doomed = make_triton()
    launch, keeper = doomed.process.launch, doomed.process.pid
    told = []
    doomed.process.on_exit(told.append)
    pids = {keeper: "keeper"}
    for pid in marked_processes(launch.run_id) - {keeper}:
        executable = Path(f"/proc/{pid}/exe").readlink()
        pids[pid] = "stub" if executable.name.endswith("_stub") else "tritonserver"
    (target,) = [pid for pid, name in pids.items() if name == victim]
    os.kill(target, signal.SIGKILL)
    if victim == "stub":  # Triton does not mind; whoever asks for tokens will
        doomed.process.stop(0.5)
    else:
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        assert doomed.process.state is State.DEAD
        assert "SIGKILL" in told[0].message
    assert_nothing_left(launch.run_id, launch.shm_prefix)
