"""An engine restarts after every kind of death under load."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.support.fake_llm_api import (
    COUNTING,
    VERSIONS,
    misbehave,
    serve_checkpoint,
    write_checkpoint,
)
from tests.support.fake_tensorrtllm import FAKE_ENGINE, config_for, serve_engine, write_engine
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import LOOPBACK, Served, alive, listening_hosts
from tests.support.waiting import PATIENCE_S, settles

STREAMS = 16
RESTARTS = {
    "restart_limit": 50,
    "restart_backoff_s": 0.1,
    "hang_timeout_s": 10 * PATIENCE_S,  # a death must be seen as one
}
PROMPT = "One two three four five six seven eight nine ten"


def write_two_ranks(folder: Path) -> Served:
    return serve_engine(write_engine(folder, tp=2, step_ms=20), tp=2, serving=RESTARTS)


def write_small_checkpoint(folder: Path, version: str) -> Served:
    write_checkpoint(folder, smollm2_file(), step_ms=20)
    return serve_checkpoint(folder, version, COUNTING, serving=RESTARTS)


START: dict[str, Callable[[Path], Served]] = {
    "two ranks": write_two_ranks,
    **{version: partial(write_small_checkpoint, version=version) for version in VERSIONS},
}


@pytest.fixture(scope="module")
def restarting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server that the tests kill: a key of `START`."""
    served = START[request.param](tmp_path_factory.mktemp("engine") / "engine").wait_until_ready()
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


def guard_of_the_job(served: Served) -> list[int]:
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in served.processes()}
    return [
        pid
        for pid, line in lines.items()
        if b"process_guard.py" in line and b"tritonserver" in line
    ]


def workers(served: Served) -> list[int]:
    """Return the processes in which the LLM API runs its engine."""
    return [pid for pid in served.processes() if b"mpi4py.futures" in command_line(pid)]


def workers_of_a_frozen_triton(served: Served) -> list[int]:
    """Freeze Triton, for which each log line and response of its backend waits."""
    os.kill(named(served, "tritonserver")[0], signal.SIGSTOP)
    return workers(served)


ONE_RANK: dict[str, Callable[[Served], list[int]]] = {
    "a tritonserver": lambda served: named(served, "tritonserver")[:1],
    "a Python stub": lambda served: named(served, "triton_python_b")[:1],
    "the process guard": guard_of_the_job,
}
VICTIMS: dict[str, Callable[[Served], list[int]]] = {
    **ONE_RANK,
    "the other tritonserver": lambda served: named(served, "tritonserver")[1:],
    "mpirun": lambda served: [*named(served, "mpirun"), *named(served, "prterun")],
    "the other Python stub": lambda served: named(served, "triton_python_b")[1:],
    "a worker": workers,
    "a worker of a frozen Triton": workers_of_a_frozen_triton,
}
OF_THE_LLM_API = ("a worker", "a worker of a frozen Triton")
KILLS = [("two ranks", victim) for victim in VICTIMS if victim not in OF_THE_LLM_API]
FEW_LLM_API_KILLS = [(VERSIONS[-1], victim) for victim in OF_THE_LLM_API]
ALL_LLM_API_KILLS = [
    (version, victim) for version in VERSIONS for victim in (*ONE_RANK, *OF_THE_LLM_API)
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Harm the LLM API's server in each way only with `--engines all`."""
    runs_all = metafunc.config.getoption("--engines") == "all"
    if "victim" in metafunc.fixturenames:
        kills = KILLS + (ALL_LLM_API_KILLS if runs_all else FEW_LLM_API_KILLS)
        metafunc.parametrize(("restarting", "victim"), kills, indirect=["restarting"])


def test_kill_9_under_load(restarting: Served, victim: str) -> None:
    before = restarting.processes()
    started = threading.Barrier(STREAMS + 1, timeout=PATIENCE_S)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream, restarting, started.wait) for _ in range(STREAMS)]
        started.wait()
        (target, *_) = VICTIMS[victim](restarting)
        subprocess.run(["kill", "-9", str(target)], check=True)
        assert settles(lambda: not restarting.is_healthy()), restarting.log[-3000:]
        endings = {future.result() for future in streams}
    assert endings <= {"cut", "503"}, restarting.log[-3000:]
    assert settles(restarting.is_healthy)
    assert answers_correctly(restarting)
    after = restarting.processes()
    assert sorted(after.values()) == sorted(before.values())
    old = {pid: name for pid, name in before.items() if pid not in after}
    assert not alive(old)


@pytest.mark.parametrize("restarting", ["two ranks"], indirect=True)
def test_nothing_listens_on_a_public_address(restarting: Served) -> None:
    assert {*named(restarting, "mpirun"), *named(restarting, "prterun")}
    assert listening_hosts(restarting) <= LOOPBACK


@pytest.mark.parametrize("restarting", ["two ranks"], indirect=True)
def test_two_ranks_answer_right(restarting: Served) -> None:
    assert answers_correctly(restarting)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("killed", ["server and process guard", "all but the engine"])
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
    """Change the engine's behaviour before each failure; the next run reads it."""
    folder = write_engine(tmp_path / "engine", step_ms=10, broken_after=60)
    served = serve_engine(folder, serving={"hang_timeout_s": 3}).wait_until_ready()
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
    finally:
        assert served.end() == 0


def test_an_llm_api_that_fails_in_any_way_is_restarted(
    tmp_path: Path, llm_api_version: str
) -> None:
    """Change the worker's behaviour before each failure; the next run reads it."""
    folder = write_checkpoint(tmp_path / "model", smollm2_file(), step_ms=10, crash_after=60)
    limits = {"hang_timeout_s": 3, "restart_backoff_s": 0.1}
    served = serve_checkpoint(folder, llm_api_version, COUNTING, serving=limits).wait_until_ready()
    failures = ["crash_after", "oom_after", "fatal_after", "hang_after"]
    try:
        for fault, after in itertools.zip_longest(failures, failures[1:]):
            misbehave(folder, **{fault: 1_000_000}, **({after: 60} if after else {}))
            assert stream(served) == "cut"
            assert settles(lambda: answers_correctly(served))
        assert served.log.count("engine exited") == len(failures)
        assert "no token" in served.log
    finally:
        assert served.end() == 0
    assert not served.leftovers()


def test_an_engine_beyond_its_restart_limit_ends_the_process(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", step_ms=10, crash_after=60)
    limits = {"restart_limit": 1, "restart_backoff_s": 0}
    served = serve_engine(folder, serving=limits).wait_until_ready()
    (folder / "rank0.engine").write_text("FAKE\nload_crash=1\n")
    assert stream(served) == "cut"
    assert served.process.wait(PATIENCE_S) != 0
    assert "giving up after 1 restarts" in served.log
    assert not served.leftovers()


@pytest.mark.parametrize(
    ("behaviour", "parts"),
    [
        ({"load_crash": 1}, ["Triton"]),
        ({"load_error": "CUDA out of memory"}, ["memory"]),
        ({"load_s": 600}, ["not ready after 3 s"]),
    ],
)
def test_a_failed_start_logs_its_cause(
    tmp_path: Path, behaviour: dict[str, object], parts: list[str]
) -> None:
    folder = write_engine(tmp_path / "engine", **behaviour)
    served = serve_engine(folder, serving={"start_timeout_s": 3})
    assert served.process.wait(PATIENCE_S) != 0
    served._reader.join(5)
    assert served.lines[-1].startswith("error: "), served.log
    for part in parts:
        assert part in served.lines[-1]


def test_parallelism_that_differs_is_refused_at_once(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", tp=2, load_s=600)  # the engine is not even loaded
    served = serve_engine(folder, tp=4)
    assert served.process.wait(PATIENCE_S) != 0
    served._reader.join(5)
    assert "tensor_parallelism is 4" in served.lines[-1]
    assert "built for 2" in served.lines[-1]
