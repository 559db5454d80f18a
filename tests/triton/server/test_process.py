"""The life cycle of a server, with small programs in place of Triton."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.support.paths import FAKES, PROGRAMS
from tests.support.triton_server import assert_nothing_left
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.errors import TritonError
from trtllm_truss.processes.child import sweep
from trtllm_truss.triton.server.process import ServerProcess, State


@pytest.fixture
def fake_triton(tmp_path, monkeypatch):
    """Make servers of the given modes; stop them afterwards and check for leftovers."""
    monkeypatch.chdir(tmp_path)
    made = []

    def make(*modes, **options):
        def command(launch):
            launches.append(launch)
            program = str(FAKES / "triton" / "program.py")
            ports = (str(launch.ports.grpc), str(launch.ports.metrics))
            arguments = (launch.run_id, *ports, launch.shm_prefix)
            return [sys.executable, program, *arguments, *modes]

        launches = []
        server = ServerProcess(command, os.environ, **options)
        made.append((server, launches))
        return server

    yield make
    for server, launches in made:
        server.stop(0.1)
        for launch in launches:
            assert_nothing_left(launch.run_id, launch.shm_prefix)


def started(server, ready_s=PATIENCE_S):
    server.start()
    server.wait_until_ready(ready_s)
    return server


def test_life_of_a_server(fake_triton):
    server = fake_triton("slow")
    assert (server.state, server.pid) == (State.NEW, None)
    server.start()
    assert server.state is State.STARTING
    server.wait_until_ready(PATIENCE_S)
    assert server.state is State.READY
    assert server.grpc_address == f"127.0.0.1:{server.launch.ports.grpc}"
    server.stop(2)
    server.stop(2)
    assert server.state is State.STOPPED
    with pytest.raises(TritonError, match="started before; it is stopped"):
        server.start()


def test_a_rank_that_is_never_ready_is_waited_for(fake_triton):
    """Its own end is a failure with every status but 0."""
    looks = iter([False, True])
    server = fake_triton("never_ready")
    server.start()
    assert server.wait_until_ended(0.01, lambda: next(looks, True)) is not None
    assert server.state is State.STOPPED
    failing = fake_triton("crash")
    failing.start()
    with pytest.raises(TritonError, match=r"exited with code 3\. Its log: failed to load"):
        failing.wait_until_ended(0.01, lambda: False)


def test_stop_before_start(fake_triton):
    server = fake_triton()
    server.stop()
    assert server.state is State.STOPPED
    with pytest.raises(TritonError):
        server.start()


def test_crash_at_boot_is_reported_at_once(fake_triton):
    with pytest.raises(TritonError) as failure:
        started(fake_triton("crash"), ready_s=10 * PATIENCE_S)
    assert failure.value.message == (
        "Triton exited with code 3. Its log: failed to load: no engine"
    )


def test_missing_program_is_reported():
    server = ServerProcess(lambda _: ["/nowhere/tritonserver"], os.environ)
    with pytest.raises(TritonError, match="cannot run /nowhere/tritonserver: No such file"):
        started(server)


@pytest.mark.parametrize("mode", ["never_ready", "stranger"])
def test_deadline(fake_triton, mode):
    server = fake_triton(mode)
    start_s = time.monotonic()
    with pytest.raises(TritonError, match=r"not ready after 0\.7 s"):
        started(server, ready_s=0.7)
    assert time.monotonic() - start_s >= 0.7
    assert server.state is State.STARTING


def test_stop_ends_the_wait(fake_triton):
    server = fake_triton("never_ready")
    server.start()
    threading.Timer(0.3, server.stop).start()
    with pytest.raises(TritonError, match="stopped"):
        server.wait_until_ready(30)


def test_the_end_of_this_process_ends_the_wait(fake_triton, monkeypatch):
    """Process 1 of a container reaches its end during a load: SIGTERM does not kill it."""
    ended = threading.Thread()
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    with pytest.raises(TritonError, match="process is exiting"):
        started(fake_triton("never_ready"))


def test_taken_port_is_given_up_for_another(fake_triton):
    server = started(fake_triton("port_taken"))
    assert server.state is State.READY
    assert not any("already in use" in line for line in server.tail)


def test_server_that_was_ready_is_not_started_on_other_ports(fake_triton):
    server = started(fake_triton("port_lost"))
    (child,) = [p for p in children_of(server.pid) if b"triton/program.py" in command_line(p)]
    os.kill(child, signal.SIGKILL)
    assert settles(lambda: server.state is State.DEAD)
    with pytest.raises(TritonError, match="SIGKILL"):
        server.wait_until_ready(PATIENCE_S)
    assert server.state is State.DEAD


def test_server_that_ignores_sigterm_is_killed(fake_triton):
    server = started(fake_triton("stubborn", "family", "memory"))
    launch = server.launch
    start_s = time.monotonic()
    server.stop(0.3)
    assert time.monotonic() - start_s >= 0.3
    assert_nothing_left(launch.run_id, launch.shm_prefix, within_s=0.1)


def test_many_stops_at_once(fake_triton):
    server = started(fake_triton("stubborn"))
    threads = [threading.Thread(target=server.stop, args=(0.2,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert server.state is State.STOPPED


def test_output_is_drained_and_the_tail_bounded(fake_triton):
    lines = []
    server = started(fake_triton("chatty", on_line=lines.append))
    assert settles(lambda: len(lines) >= 20_000)
    assert len(server.tail) == 200
    assert server.tail[-1].startswith("line 19999 x")


def test_death_after_ready_is_reported_once(fake_triton):
    server = started(fake_triton("family", "memory"))
    ends = []
    server.on_exit(ends.append)
    (child,) = [p for p in children_of(server.pid) if b"triton/program.py" in command_line(p)]
    os.kill(child, signal.SIGSEGV)
    assert settles(lambda: ends)
    assert server.state is State.DEAD
    assert [error.message for error in ends] == ["Triton was killed by SIGSEGV. Its log is empty."]
    with pytest.raises(TritonError, match="SIGSEGV"):
        server.wait_until_ready(1)
    server.stop()
    assert server.state is State.DEAD


def test_a_stop_is_not_reported_as_a_death(fake_triton):
    server = started(fake_triton())
    ends = []
    server.on_exit(ends.append)
    server.stop(2)
    assert ends == []


def test_killed_guard_takes_everything_with_it(fake_triton):
    server = started(fake_triton("stubborn", "family", "memory"))
    ends = []
    server.on_exit(ends.append)
    os.kill(server.pid, signal.SIGKILL)
    assert settles(lambda: ends)
    assert "process guard was killed by SIGKILL" in ends[0].message
    assert_nothing_left(server.launch.run_id, server.launch.shm_prefix, within_s=0.5)


def test_no_file_descriptor_leaks(fake_triton, tmp_path):
    inheritable = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        server = started(fake_triton("files"))
    finally:
        os.close(inheritable)
    # 0, 1, 2 and the listed folder
    assert "files [0, 1, 2, 3]" in server.tail


@pytest.mark.parametrize("name", ["triton-output", "triton-watch"])
def test_a_server_that_no_thread_can_watch_is_not_started(fake_triton, monkeypatch, name):
    start = threading.Thread.start

    def start_others(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    server = fake_triton("stubborn", "family", "memory")
    monkeypatch.setattr(threading.Thread, "start", start_others)
    with pytest.raises(TritonError, match="could not be started: can't start new thread"):
        server.start()
    server.stop()
    assert server.state is State.STOPPED


@contextlib.contextmanager
def files_left(count):
    """Limit this process to `count` further open files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("count", range(12))
def test_running_out_of_files_leaves_nothing(fake_triton, tmp_path, monkeypatch, count):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = fake_triton()
    with files_left(count), contextlib.suppress(TritonError):
        server.start()
    server.stop(1)
    assert server.state is State.STOPPED
    assert not list(tmp_path.iterdir())


def test_a_death_is_noticed_without_a_file_to_open(fake_triton):
    server = started(fake_triton())
    ends = []
    server.on_exit(ends.append)
    with files_left(0):
        os.kill(server.pid, signal.SIGKILL)
        assert settles(lambda: ends)
    assert server.state is State.DEAD
    sweep()  # as the next start does


def test_a_listener_that_fails_does_not_stop_the_reading(fake_triton):
    lines = []

    def fail(line):
        lines.append(line)
        raise ValueError(line)

    started(fake_triton("port_lost", "files", on_line=fail))
    assert settles(lambda: len(lines) == 2)


def own(*arguments):
    owner = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "owner.py"), *arguments], stdout=subprocess.PIPE, text=True
    )
    run_id, shm_prefix, guard = owner.stdout.readline().split()
    assert list(Path("/dev/shm").glob(f"{shm_prefix}*"))
    return owner, run_id, shm_prefix, int(guard)


@pytest.mark.parametrize(
    ("fork", "number"),
    [
        *(("-", signal.SIGTERM), ("FORK", signal.SIGKILL)),
        pytest.param("-", signal.SIGKILL, marks=pytest.mark.thorough),
        pytest.param("FORK", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_nothing_outlives_its_owner(number, fork):
    owner, run_id, shm_prefix, _ = own(fork, "stubborn", "family", "memory")
    owner.send_signal(number)
    owner.wait(PATIENCE_S)
    owner.stdout.close()
    assert_nothing_left(run_id, shm_prefix)


def test_guard_below_a_guard_cleans_up_first(tmp_path):
    """Kill a process with a guard that itself runs below a guard, as under `serve`."""

    def command(_):
        return [
            *(sys.executable, str(PROGRAMS / "owner.py"), "-"),
            *("stubborn", "family", "memory"),
        ]

    outer = ServerProcess(command, os.environ)
    outer.start()
    assert settles(lambda: any("trtllm_truss_" in line for line in outer.tail))
    run_id, shm_prefix, _ = outer.tail[-1].split()
    outer.stop(0)
    assert_nothing_left(run_id, shm_prefix, within_s=0.5)


def children_of(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()
