"""An engine restarts after every kind of death under load."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.fakes.tensorrt_llm import (
    COUNTING,
    VERSIONS,
    misbehave,
    open_mpi,
    serve_checkpoint,
    write_checkpoint,
)
from tests.fakes.triton import FAKE_ENGINE, config_for, serve_engine, write_engine
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import LOOPBACK, Served, alive, listening_hosts
from tests.support.waiting import PATIENCE_S, settles

STREAMS = 16
HANG_TIMEOUTS_S = {
    "": 10 * PATIENCE_S,  # a death must be seen as one
    "-impatient": 3,
}
PROMPT = "One two three four five six seven eight nine ten"
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
"""Of a SmolLM2 that two workers can share."""


def start_engine(folder: Path, loads: Path, *, count: int, hang_timeout_s: float) -> Served:
    engine = write_engine(folder, tp=count, step_ms=20, mpi=1, load_after=loads)
    config = config_for(engine, count, serving=restarts(hang_timeout_s))
    mpi = open_mpi()
    path = {"PATH": os.pathsep.join((mpi["PATH"], os.environ["PATH"]))}
    return Served(config, {**FAKE_ENGINE, **mpi, **path})


def start_checkpoint(
    folder: Path, loads: Path, *, version: str, count: int, hang_timeout_s: float
) -> Served:
    write_checkpoint(folder, smollm2_file(), HEADS, step_ms=20, load_after=str(loads))
    return serve_checkpoint(
        folder, version, tensor_parallelism=count, serving=restarts(hang_timeout_s)
    )


def restarts(hang_timeout_s: float) -> dict[str, float]:
    return {"restart_limit": 50, "restart_backoff_s": 0.1, "hang_timeout_s": hang_timeout_s}


START: dict[str, Callable[[Path, Path], Served]] = {}
for patience, hang_timeout_s in HANG_TIMEOUTS_S.items():
    for count in (1, 2):
        of_all = {"count": count, "hang_timeout_s": hang_timeout_s}
        START[f"engine-{count}{patience}"] = partial(start_engine, **of_all)
        for version in VERSIONS:
            START[f"{version}-{count}{patience}"] = partial(
                start_checkpoint, version=version, **of_all
            )


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without which engines do not load."""
    file = tmp_path_factory.mktemp("loads") / "loads"
    file.touch()
    return file


@pytest.fixture(scope="module")
def restarting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, loads: Path
) -> Iterator[Served]:
    """A server that the tests harm: a key of `START`."""
    folder = tmp_path_factory.mktemp("engine") / "engine"
    served = START[request.param](folder, loads).wait_until_ready()
    try:
        yield served
        assert served.end() == 0, served.log
        assert not served.leftovers()
    finally:
        if served.process.poll() is None:
            served.process.kill()


def stream(served: Served, started: Callable[[], object] = lambda: None) -> str:
    """Read one long stream; return `whole`, `cut`, or the status of its rejection.

    Call `started` at the first piece.
    """
    body = {"prompt": PROMPT, "max_tokens": 1500}
    try:
        with httpx.stream("POST", served.url, json=body, timeout=120) as answer:
            for number, _ in enumerate(answer.iter_raw()):
                if number == 0:
                    started()
            return "whole" if answer.status_code == 200 else str(answer.status_code)
    except httpx.RemoteProtocolError:
        return "cut"


def answers_correctly(served: Served) -> bool:
    return served.post({"prompt": PROMPT, "max_tokens": 10}).text == PROMPT


def named(served: Served, name: str) -> list[int]:
    return sorted(pid for pid, comm in served.processes().items() if comm == name)


def in_rank(rank: int, pids: Iterable[int]) -> list[int]:
    """Return the processes of a rank; a single one has no number."""
    found = {}
    for pid in pids:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        number = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", environment)
        found[pid] = int(number[1]) if number else 0
    return [pid for pid in found if found[pid] == rank]


def server(served: Served, rank: int = 0) -> list[int]:
    return in_rank(rank, named(served, "tritonserver"))


def stub(served: Served, rank: int = 0) -> list[int]:
    return in_rank(rank, named(served, "triton_python_b"))


def whole_rank(served: Served, rank: int = 0) -> list[int]:
    """Return what is one process with the real backend."""
    return [*server(served, rank), *stub(served, rank)]


def guard_of_the_job(served: Served) -> list[int]:
    lines = {pid: command_line(pid) for pid in served.processes()}
    return [
        pid
        for pid, line in lines.items()
        if b"process_guard.py" in line and b"tritonserver" in line
    ]


def mpirun(served: Served) -> list[int]:
    """Return the job's launcher, by its names in Open MPI 5, and in 4 from a package."""
    return [p for name in ("mpirun", "prterun", "orterun_wrapper") for p in named(served, name)]


def server_of_a_frozen_mpirun(served: Served) -> list[int]:
    """Freeze mpirun, which then exits no more: so Open MPI 5.0.11 hung after losing its ranks."""
    for pid in mpirun(served):
        os.kill(pid, signal.SIGSTOP)
    return server(served)


def worker(served: Served, rank: int = 0) -> list[int]:
    """Return a process in which the LLM API runs its engine."""
    return in_rank(rank, (p for p in served.processes() if b"mpi4py.futures" in command_line(p)))


def worker_of_a_frozen_triton(served: Served) -> list[int]:
    """Freeze Triton, for which each log line and response of its backend waits."""
    os.kill(server(served)[0], signal.SIGSTOP)
    return worker(served)


class Harm(NamedTuple):
    """A signal to processes; `number` of them are needed."""

    processes: Callable[[Served], list[int]]
    signal: int = signal.SIGKILL
    ranks: int = 1


ANY = {
    "kill a tritonserver": Harm(server),
    "kill a Python stub": Harm(stub),
    "kill the process guard": Harm(guard_of_the_job),
}
OF_ENGINES = {
    **ANY,
    "kill the other tritonserver": Harm(partial(server, rank=1), ranks=2),
    "kill the other Python stub": Harm(partial(stub, rank=1), ranks=2),
    "kill mpirun": Harm(mpirun, ranks=2),
    "kill a tritonserver of a frozen mpirun": Harm(server_of_a_frozen_mpirun, ranks=2),
    "stop a rank": Harm(whole_rank, signal.SIGSTOP),
    "stop the other rank": Harm(partial(whole_rank, rank=1), signal.SIGSTOP, 2),
}
OF_CHECKPOINTS = {
    **ANY,
    "kill a worker": Harm(worker),
    "kill a worker of a frozen Triton": Harm(worker_of_a_frozen_triton),
    "kill the other worker": Harm(partial(worker, rank=1), ranks=2),
    "stop a worker": Harm(worker, signal.SIGSTOP),
    "stop the other worker": Harm(partial(worker, rank=1), signal.SIGSTOP, 2),
}
HARMS = OF_ENGINES | OF_CHECKPOINTS
ALL = [
    (server, harm)
    for server in START
    for harm in (OF_ENGINES if "engine" in server else OF_CHECKPOINTS)
    if HARMS[harm].ranks <= int(server.split("-")[1])
    if (HARMS[harm].signal == signal.SIGSTOP) == ("impatient" in server)
]
IN_EVERY_RUN = [
    *(
        ("engine-2", f"kill {victim}")
        for victim in (
            *("a tritonserver", "the other Python stub", "the process guard"),
            *("mpirun", "a tritonserver of a frozen mpirun"),
        )
    ),
    ("1.3.0-2", "kill the other worker"),
]
"""tests/triton/server/test_world_sizes.py kills each process of a job, and the tests of the LLM API
stop a worker (`test_faults.py`)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Harm each server in each way only with `--engines all`."""
    runs_all = metafunc.config.getoption("--engines") == "all"
    if "harm" in metafunc.fixturenames:
        chosen = ALL if runs_all else IN_EVERY_RUN
        metafunc.parametrize(
            ("restarting", "harm"), chosen, indirect=["restarting"], scope="module"
        )


def test_harm_under_load(
    restarting: Served,
    loads: Path,
    harm: str,
    pytestconfig: pytest.Config,
    report_round: Callable[[dict[str, float]], None],
) -> None:
    for _ in range(pytestconfig.getoption("--rounds")):
        report_round(harmed(restarting, HARMS[harm], loads))


def harmed(
    served: Served,
    harm: Harm,
    loads: Path,
    answers: Callable[[Served], bool] = answers_correctly,
) -> dict[str, float]:
    """Harm a server under load; return when it was unhealthy, and healthy again.

    Args:
        loads: a file that is missing until the loss was seen: a busy machine may run a new engine
            before it runs this process.
    """
    before = served.processes()
    started = threading.Barrier(STREAMS + 1, timeout=PATIENCE_S)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream, served, started.wait) for _ in range(STREAMS)]
        started.wait()
        targets = harm.processes(served)
        assert targets
        loads.unlink()
        begin_s = time.monotonic()
        for pid in targets:
            os.kill(pid, harm.signal)
        try:
            assert settles(lambda: not served.is_healthy()), served.log[-3000:]
            unhealthy_s = time.monotonic() - begin_s
        finally:
            loads.touch()
        endings = {future.result() for future in streams}
    assert endings <= {"cut", "503"}, served.log[-3000:]
    assert settles(served.is_healthy)
    healthy_s = time.monotonic() - begin_s
    assert answers(served)
    after = served.processes()
    assert sorted(after.values()) == sorted(before.values())
    old = {pid: name for pid, name in before.items() if pid not in after}
    assert not alive(old)
    return {"unhealthy_s": unhealthy_s, "healthy_again_s": healthy_s}


@pytest.mark.parametrize("restarting", ["engine-2"], indirect=True)
def test_nothing_listens_on_a_public_address(restarting: Served) -> None:
    assert mpirun(restarting)
    assert listening_hosts(restarting) <= LOOPBACK


@pytest.mark.parametrize("restarting", ["engine-2"], indirect=True)
def test_two_ranks_answer_right(restarting: Served) -> None:
    assert answers_correctly(restarting)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("server and process guard", marks=pytest.mark.thorough),
        "all but the engine",
    ],
)
def test_a_restart_cleans_up_after_killed_guards(
    tmp_path: Path, temporary: Path, killed: str, ranks: int
) -> None:
    """The next start ends the remaining ranks and removes remaining files."""
    config = config_for(write_engine(tmp_path / "engine", tp=ranks, step_ms=20), tp=ranks)
    environment = {**FAKE_ENGINE, "TMPDIR": str(temporary)}
    served = Served(config, environment).wait_until_ready()
    pids = {**served.processes(), served.process.pid: "serve"}
    lines = {pid: command_line(pid) for pid in pids}
    targets = guard_of_the_job(served)
    targets += [
        pid for pid, line in lines.items() if b"main.py" in line and b"process_guard" not in line
    ]
    if killed == "all but the engine":
        targets += [
            pid for pid, line in lines.items() if b"process_guard" in line and b"main.py" in line
        ]
        targets.append(served.process.pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in targets:
            os.kill(pid, number)
    assert served.process.wait(PATIENCE_S) != 0
    if killed == "all but the engine":
        assert list(temporary.iterdir())
        with contextlib.ExitStack() as ending:
            after = Served(config, environment)
            ending.callback(after.end)
            assert answers_correctly(after.wait_until_ready())
    assert not alive(pids)
    assert not served.leftovers()


def test_an_engine_that_fails_in_any_way_is_restarted(tmp_path: Path) -> None:
    """Change the engine's behaviour before each failure; the next run reads it.

    The last run fails before it serves a request, beyond the limit of restarts.
    """
    folder = write_engine(tmp_path / "engine", step_ms=10, broken_after=60)
    limits = {"hang_timeout_s": 3, "restart_limit": 1, "restart_backoff_s": 0}
    served = serve_engine(folder, serving=limits).wait_until_ready()
    try:
        write_engine(folder, step_ms=10, crash_after=60)
        assert stream(served) == "cut"
        assert settles(lambda: answers_correctly(served))
        assert served.log.count("it fails every request: ") == 1
        assert served.log.count("restart 1 of") == 1

        write_engine(folder, step_ms=10, hang_after=60)
        assert stream(served) == "cut"
        assert settles(lambda: answers_correctly(served))
        assert "generated no token" not in served.log

        write_engine(folder, step_ms=10)
        assert stream(served) == "cut"
        assert settles(lambda: answers_correctly(served))
        assert served.log.count("generated no token") == 1

        (stub,) = named(served, "triton_python_b")
        os.kill(stub, signal.SIGSTOP)  # Triton answers every request with an error
        assert settles(lambda: answers_correctly(served))
        assert served.log.count("generated no token") == 2

        write_engine(folder, load_crash=1)
        os.kill(*named(served, "triton_python_b"), signal.SIGKILL)
        assert served.wait() != 0
        assert "giving up after 1 restarts" in served.log
        assert not served.leftovers()
    finally:
        if served.process.poll() is None:
            served.end()


@pytest.mark.thorough
def test_an_llm_api_that_fails_in_any_way_is_restarted(
    tmp_path: Path, llm_api_version: str
) -> None:
    """Change the worker's behaviour before each failure; the next run reads it."""
    folder = write_checkpoint(tmp_path / "model", smollm2_file(), step_ms=10, crash_after=60)
    limits = {"hang_timeout_s": 3, "restart_backoff_s": 0.1}
    served = serve_checkpoint(folder, llm_api_version, COUNTING, serving=limits).wait_until_ready()
    failures = ["crash_after", "oom_after", "fatal_after", "end_after", "hang_after"]
    try:
        for fault, after in itertools.zip_longest(failures, failures[1:]):
            misbehave(folder, **{fault: 1_000_000}, **({after: 60} if after else {}))
            assert stream(served) == "cut"
            assert settles(lambda: answers_correctly(served))
        assert served.log.count("engine exited") == len(failures)
        assert "no token" in served.log
        assert "ValueError: a tensor has no name" in served.log
    finally:
        assert served.end() == 0
    assert not served.leftovers()


@pytest.mark.parametrize(
    ("behaviour", "part"),
    [
        pytest.param({"load_crash": 1}, "Triton", marks=pytest.mark.thorough),
        pytest.param(
            {"load_error": "CUDA out of memory"},
            "memory",
            marks=pytest.mark.thorough,  # in every run: tests/triton/server/test_diagnosis.py
        ),
        ({"load_s": 600}, "not ready after 3 s"),
    ],
)
def test_a_failed_start_logs_its_cause(
    tmp_path: Path, behaviour: dict[str, object], part: str
) -> None:
    folder = write_engine(tmp_path / "engine", **behaviour)
    limits = {"start_timeout_s": 3} if "load_s" in behaviour else {}
    served = serve_engine(folder, serving=limits)
    assert served.wait() != 0
    assert served.lines[-1].startswith("error: "), served.log
    assert part in served.lines[-1]


def test_parallelism_that_differs_is_refused_at_once(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", tp=2, load_s=600)  # the engine is not even loaded
    served = serve_engine(folder, tp=4)
    assert served.wait() != 0
    assert "tensor_parallelism is 4" in served.lines[-1]
    assert "built for 2" in served.lines[-1]
