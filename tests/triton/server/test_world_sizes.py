"""Engines for several GPUs: real Triton, real Open MPI, and a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.triton import write_engine
from tests.support.triton_server import assert_nothing_left, chunks_of
from tests.support.truss_process import LOOPBACK, listening_addresses
from tests.support.waiting import PATIENCE_S, settles, until

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.errors import EngineUnavailable, TritonError
from trtllm_truss.processes.process_guard import marked_processes
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.server import command, process
from trtllm_truss.triton.server.ports import free_ports
from trtllm_truss.triton.server.process import ServerProcess, State

PROMPT = [11, 12, 13]
STREAMS = 16
LATE = 600
"""Iterations of 5 ms, in which all streams start."""


async def collect(client, max_tokens=10, request_id="r"):
    request = EngineRequest(request_id, PROMPT, max_tokens)
    return [token async for chunk in chunks_of(client, request) for token in chunk.token_ids]


async def stream(server, **options):
    client = TritonClient(server.grpc_address, tensorrt_llm_version=PINNED_VERSION)
    try:
        return await collect(client, **options)
    finally:
        await client.close()


def processes(server: ServerProcess) -> Iterator[tuple[str, int]]:
    """Yield the run's processes as `mpirun`, `rank 1`, `stub 1` …, without the guard."""
    for pid in marked_processes(server.launch.run_id) - {server.pid}:
        name = Path(f"/proc/{pid}/exe").readlink().name
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
        rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environment)
        if name == "tritonserver":
            yield f"rank {rank[1] if rank else 0}", pid
        elif name.endswith("_stub"):
            yield f"stub {rank[1] if rank else 0}", pid
        elif "run" in name:
            yield "mpirun", pid


def assert_gone(server, within_s=PATIENCE_S):
    launch = server.launch
    assert_nothing_left(launch.run_id, launch.shm_prefix, within_s)
    assert not launch.folder.exists()
    for port in (launch.ports.grpc, launch.ports.metrics):
        # a neighbouring test may own the port for a moment
        assert settles(lambda port=port: can_be_bound(port)), port


def can_be_bound(port):
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taker.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.parametrize(("tp", "pp"), [(2, 2)])
async def test_engine_of_any_size_answers(make_triton, tp, pp):
    server = make_triton(tp=tp, pp=pp)
    assert await stream(server) == [11, 12, 13, 11, 12, 13, 11, 12, 13, 11]
    names = [name for name, _ in processes(server)]
    assert sorted(n for n in names if n.startswith("rank")) == [f"rank {i}" for i in range(tp * pp)]
    server.stop(2)
    assert_gone(server, within_s=0.1)


def test_engine_folder_is_one_that_inspection_reads(tmp_path):
    engine = inspect_engine(write_engine(tmp_path, tp=2, pp=2, limits={"max_batch_size": 3}))
    assert (engine.tensor_parallelism, engine.pipeline_parallelism) == (2, 2)
    assert engine.max_batch_size == 3
    assert engine.rank_files.missing == engine.rank_files.surplus == ()


async def live_streams(server, max_tokens=1900):
    """Return a client and its streams once all have returned tokens."""
    client = TritonClient(server.grpc_address, tensorrt_llm_version=PINNED_VERSION)
    given = [0] * STREAMS

    async def one(index):
        async for chunk in chunks_of(client, EngineRequest(f"r{index}", PROMPT, max_tokens)):
            given[index] += len(chunk.token_ids)

    tasks = [asyncio.create_task(one(index)) for index in range(STREAMS)]
    await until(lambda: all(given))
    return client, tasks


@pytest.mark.parametrize(
    ("world_size", "victim"),
    [
        *((1, victim) for victim in ("rank 0", "stub 0")),
        *((2, victim) for victim in ("stub 0", "guard", "rank 1", "mpirun")),
        *(
            pytest.param(world_size, victim, marks=pytest.mark.thorough)
            for world_size, victim in ((1, "guard"), (2, "rank 0"), (2, "stub 1"))
        ),
    ],
)
async def test_kill_9_of_any_process_ends_every_stream(make_triton, victim, world_size):
    server = make_triton(tp=world_size, step_ms=10)
    reported = []
    server.on_exit(reported.append)
    pids = {**dict(processes(server)), "guard": server.pid}
    client, tasks = await live_streams(server)
    os.kill(pids[victim], signal.SIGKILL)
    await until(lambda: server.state is not State.READY)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
    assert {type(result) for result in results} == {EngineUnavailable}
    assert server.state is State.DEAD
    await until(lambda: reported)
    assert [error.message for error in reported] == [server.cause]
    assert "SIGKILL" in server.cause or world_size == 2
    assert_gone(server)
    await client.close()


async def test_a_connection_does_not_block_mpirun(make_triton):
    """Detect a rank's death in spite of idle connections, which once blocked mpirun."""
    server = make_triton(tp=2)
    listening = {
        address
        for pid in marked_processes(server.launch.run_id)
        for address in listening_addresses(pid)
    }
    with contextlib.ExitStack() as idle:
        for host, port in listening:
            if host not in LOOPBACK:
                connection = idle.enter_context(socket.create_connection(("127.0.0.1", port)))
                connection.sendall(b"x")
        os.kill(dict(processes(server))["rank 1"], signal.SIGKILL)
        await until(lambda: server.state is State.DEAD)
    assert {host for host, _ in listening} <= LOOPBACK
    assert "accept" not in server.cause
    assert "eventually" not in server.cause


def test_mpirun_whose_port_was_taken_gets_another(make_triton, monkeypatch):
    ports = []

    def choose(*pinned):
        ports.append(replace(free_ports(*pinned), **({} if ports else {"mpi": taken})))
        return ports[-1]

    monkeypatch.setattr(command, "free_ports", choose)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        server = make_triton(tp=2)
    assert server.launch.ports == ports[1]


async def test_streams_that_are_left_end_in_the_engine(make_triton):
    server = make_triton(step_ms=10, limits={"max_batch_size": 8})
    client = TritonClient(server.grpc_address, tensorrt_llm_version=PINNED_VERSION)
    given = [0] * STREAMS

    async def one(index):
        async for chunk in chunks_of(client, EngineRequest(f"s{index}", PROMPT, 1900)):
            given[index] += len(chunk.token_ids)

    tasks = [asyncio.create_task(one(index)) for index in range(STREAMS)]
    await until(lambda: sum(count >= 20 for count in given) == 8)  # the others wait
    for task in tasks:
        task.cancel()
    for _ in range(5):  # rounds of the event loop: cancelled tasks do not wait for the engine
        await asyncio.sleep(0)
    assert all(task.done() for task in tasks)
    await until(lambda: sum("stopped id=s" in line for line in server.lines) == STREAMS)
    assert await collect(client) == [11, 12, 13, 11, 12, 13, 11, 12, 13, 11]
    await client.close()


async def test_engine_that_aborts_ends_every_stream(make_triton):
    server = make_triton(tp=2, step_ms=5, crash_after=LATE)
    client, tasks = await live_streams(server)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
    assert {type(result) for result in results} == {EngineUnavailable}
    await client.close()
    await until(lambda: server.state is State.DEAD)
    with pytest.raises(TritonError, match="SIGABRT"):
        server.wait_until_ready(PATIENCE_S)
    assert_gone(server)


async def test_hung_engine_is_stopped(make_triton):
    server = make_triton(tp=2, step_ms=5, hang_after=LATE)
    client, tasks = await live_streams(server)
    await asyncio.to_thread(server.wait_for_line, "hanging")
    assert server.state is State.READY  # only clients that wait for tokens notice
    server.stop(0.3)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {EngineUnavailable}
    assert_gone(server, within_s=0.1)
    await client.close()


async def test_two_servers_do_not_disturb_each_other(make_triton):
    first, second = make_triton(tp=2, ready_s=None), make_triton(tp=2, ready_s=None)
    first.wait_until_ready(PATIENCE_S)
    second.wait_until_ready(PATIENCE_S)
    assert await stream(first) == await stream(second)
    os.kill(dict(processes(first))["rank 1"], signal.SIGKILL)
    client, tasks = await live_streams(second, 300)
    assert_gone(first)
    assert second.state is State.READY
    results = await asyncio.gather(*tasks)
    assert results == [None] * STREAMS
    await client.close()


def rejected(server):
    with pytest.raises(TritonError) as failure:
        server.wait_until_ready(PATIENCE_S)
    assert_gone(server)
    return failure.value.message


@pytest.mark.parametrize(
    ("tp", "world_size"),
    [(2, 1), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, 2), (4, 2)))],
)
def test_wrong_world_size_is_reported(make_triton, tp, world_size):
    server = make_triton(tp=tp, world_size=world_size, ready_s=None)
    assert "tp*pp*cp" in rejected(server)


def test_missing_rank_file_is_reported(make_triton):
    server = make_triton(
        tp=2, ready_s=None, spoil=lambda folder: (folder / "rank1.engine").unlink()
    )
    assert "rank1.engine" in rejected(server)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_one_rank_that_cannot_load_ends_the_start(make_triton, monkeypatch, rank):
    """The failed rank waits in MPI_Finalize for the other one, which waits for it."""
    monkeypatch.setattr(process, "_EXIT_LIMIT_S", 0.1)
    fails = {rank: {"load_error": "[TensorRT-LLM][ERROR] CUDA runtime error: out of memory"}}
    server = make_triton(tp=2, ready_s=None, ranks=fails, finalizes=True)
    with pytest.raises(TritonError, match=r"failed to load a model\. .*memory"):
        server.wait_until_ready(PATIENCE_S)
    assert server.state is State.STARTING  # its processes would never have ended
    server.stop(0.3)
    assert_gone(server)


async def test_ranks_that_finalize_serve(make_triton):
    server = make_triton(tp=2, finalizes=True)
    assert await stream(server) == [11, 12, 13, 11, 12, 13, 11, 12, 13, 11]


def test_engine_of_another_version_is_reported(make_triton):
    def spoil(folder):
        for file in folder.glob("*.engine"):
            file.write_bytes(b"ftrt\x00\x01")

    assert "10.11.0.33 got 10.3.0.26" in rejected(make_triton(tp=2, ready_s=None, spoil=spoil))


def test_crash_while_loading_is_reported(make_triton):
    server = make_triton(tp=2, ready_s=None, ranks={1: {"load_crash": 1}})
    assert "SIGABRT" in rejected(server)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_engine_that_loads_too_long_meets_the_deadline(make_triton, rank):
    server = make_triton(tp=2, ready_s=None, ranks={rank: {"load_s": 600}})
    start_s = time.monotonic()
    with pytest.raises(TritonError, match="not ready after 1 s"):
        server.wait_until_ready(1)
    server.stop(0.3)
    assert time.monotonic() - start_s < PATIENCE_S  # loading takes 600 s
    assert_gone(server, within_s=0.1)
