"""Supervision of failing starts, and stops in between."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import cast

import pytest
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.errors import TritonError
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.observability.status import Change, ServiceStatus
from trtllm_truss.observability.status import State as ServiceState
from trtllm_truss.serving import supervisor as supervisor_module
from trtllm_truss.serving.supervisor import Supervisor
from trtllm_truss.settings.model import Serving
from trtllm_truss.triton.server.process import ServerProcess, State

WARM_UP = "trtllm_truss.triton.client.client.warm_up"


class Run:
    """A server process as the supervisor uses it; the second one never becomes ready."""

    grpc_address = "127.0.0.1:9"
    cause = "it was ended by the test."

    def __init__(self, ready: bool) -> None:
        self.state = State.NEW
        self._ready = ready
        self._stopped = threading.Event()

    def start(self) -> None:
        self.state = State.STARTING

    def wait_until_ready(self, deadline_s: float) -> None:
        if self._ready:
            self.state = State.READY
        elif self._stopped.wait(deadline_s):
            raise TritonError("Triton was stopped.")

    def on_exit(self, callback: object) -> None:
        """Do nothing; the supervisor polls too."""

    def refuses_connections(self) -> bool:
        return False

    def stop(self, timeout_s: float = 10) -> None:
        self.state = State.STOPPED
        self._stopped.set()


class ClosedRun(Run):
    """A run whose Triton is gone while mpirun keeps running."""

    def refuses_connections(self) -> bool:
        return True


def supervisor_of(
    new_run: Callable[[], object],
    limits: Serving | None = None,
    on_restart: Callable[[], None] = lambda: None,
    give_up: Callable[[], None] = lambda: None,
    status: ServiceStatus | None = None,
    heartbeat: EngineHeartbeat | None = None,
) -> Supervisor:
    return Supervisor(
        lambda: cast(ServerProcess, new_run()),
        limits or Serving(),
        heartbeat or EngineHeartbeat(),
        status or ServiceStatus(),
        first_requests=lambda: [],
        tensorrt_llm_version="1.0.0",
        on_restart=on_restart,
        give_up=give_up,
    )


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def no_file(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def no_file_for_triton(*_: object) -> None:
    try:
        no_file()
    except OSError as error:
        raise TritonError(f"Triton could not be started: {error}.") from error


class FailingRun(Run):
    """A run with one failing method."""

    def __init__(self, method: str, error: Callable[..., None]) -> None:
        super().__init__(ready=True)
        setattr(self, method, error)


@pytest.mark.parametrize("where", ["new_run", "start", "wait_until_ready", "on_exit", "warm_up"])
def test_any_error_of_a_restart_counts_as_one_failed_start(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    first, last = Run(ready=True), Run(ready=True)
    runs = [first, Run(ready=True) if where == "warm_up" else FailingRun(where, no_thread), last]
    failed = runs[1]
    back = threading.Event()

    def new_run() -> object:
        made.append(runs[len(made)])
        if where == "new_run" and len(made) == 2:
            no_thread()
        return made[-1]

    def warm_up(*_: object) -> None:
        if where == "warm_up" and len(made) == 2:
            no_thread()
        if len(made) == 3:
            back.set()

    made: list[Run] = []
    monkeypatch.setattr(WARM_UP, warm_up)
    status = ServiceStatus()
    supervisor = supervisor_of(new_run, Serving(restart_backoff_s=0), status=status)
    supervisor.start()
    first.state = State.DEAD
    assert back.wait(PATIENCE_S)
    supervisor.stop()
    assert [(each.change, each.restart) for each in status.current.events[:4]] == [
        (Change.EXITED, 0),
        (Change.RESTART, 1),
        (Change.RESTART_FAILED, 0),
        (Change.RESTART, 2),
    ]
    assert status.current.restarts == 2
    assert where == "new_run" or failed.state is State.STOPPED
    assert last.state is State.STOPPED
    (line,) = [r.getMessage() for r in caplog.records if "restart failed" in r.getMessage()]
    assert line.split(": ")[1] == "RuntimeError"


@pytest.mark.parametrize("error", [no_file, no_file_for_triton])
def test_a_lack_of_descriptors_is_no_failed_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Callable[..., None]
) -> None:
    """Callers hold them for a while; the limit of restarts is for an engine that cannot run."""
    monkeypatch.setattr(supervisor_module, "_FILES_WAIT_S", 0)
    monkeypatch.setattr(WARM_UP, lambda *_: None)
    first, last = Run(ready=True), Run(ready=True)
    runs = [first, *(FailingRun("start", error) for _ in range(10)), last]
    made: list[Run] = []

    def new_run() -> object:
        made.append(runs[len(made)])
        return made[-1]

    status = ServiceStatus()
    supervisor = supervisor_of(new_run, Serving(restart_limit=1), status=status)
    supervisor.start()
    first.state = State.DEAD
    assert settles(lambda: supervisor.is_healthy and len(made) == len(runs))
    supervisor.stop()
    assert last.state is State.STOPPED
    assert status.current.restarts == 1
    assert not [r for r in caplog.records if "restart failed" in r.getMessage()]
    waits = [r for r in caplog.records if "waits for descriptors" in r.getMessage()]
    assert len(waits) == 1, "once a minute"
    assert "Too many open files" in waits[0].getMessage()


@pytest.mark.parametrize("where", ["new_run", "on_restart", "cause"])
def test_gives_up_after_the_restart_limit(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    class Broken(Run):
        @property
        def cause(self) -> str:  # type: ignore[override]
            no_thread()
            raise AssertionError

    runs = [(Broken if where == "cause" else Run)(ready=True)]
    first = runs[0]
    given_up = threading.Event()
    status = ServiceStatus()
    monkeypatch.setattr(WARM_UP, lambda *_: None)
    supervisor = supervisor_of(
        lambda: runs.pop() if runs else no_thread(),
        Serving(restart_limit=3, restart_backoff_s=0),
        on_restart=no_thread if where == "on_restart" else lambda: None,
        give_up=given_up.set,
        status=status,
    )
    supervisor.start()
    first.state = State.DEAD
    assert given_up.wait(PATIENCE_S)
    supervisor.stop()
    assert status.current.state is ServiceState.FAILED
    assert status.current.reason.startswith("giving up after 3 restarts")


def test_a_server_that_closed_its_port_is_ended_once_nothing_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At SIGTERM Triton closes its port before it finishes its streams."""
    monkeypatch.setattr(WARM_UP, lambda *_: None)
    monkeypatch.setattr(supervisor_module, "_CLOSED_LIMIT_S", 0)
    runs = [ClosedRun(ready=True), Run(ready=True)]
    first, status, heartbeat = runs[0], ServiceStatus(), EngineHeartbeat()
    supervisor = supervisor_of(lambda: runs.pop(0), status=status, heartbeat=heartbeat)
    ticks = threading.Semaphore(0)
    failure = supervisor._failure
    monkeypatch.setattr(supervisor, "_failure", lambda: (ticks.release(), failure())[1])
    with heartbeat.waiting():
        supervisor.start()
        assert ticks.acquire(timeout=PATIENCE_S)
        assert ticks.acquire(timeout=PATIENCE_S)
        assert first.state is State.READY
    assert settles(lambda: status.current.restarts == 1 and supervisor.is_healthy)
    supervisor.stop()
    assert first.state is State.STOPPED
    assert "mpirun has not exited" in status.current.events[0].reason


def test_nothing_starts_after_a_stop() -> None:
    """A tokenizer can fail before Triton is started."""
    run = Run(ready=False)
    supervisor = supervisor_of(lambda: run)
    supervisor.stop()
    with pytest.raises(TritonError, match="stopped"):
        supervisor.start()
    assert run.state is State.STOPPED


def test_stop_ends_a_run_that_starts_meanwhile(monkeypatch) -> None:
    runs = [Run(ready=True), Run(ready=False)]
    begun, may_go_on = threading.Event(), threading.Event()

    def new_run() -> object:
        run = runs[len(made)]
        made.append(run)
        if len(made) == 2:
            begun.set()
            assert may_go_on.wait(PATIENCE_S)
        return run

    made: list[Run] = []
    monkeypatch.setattr(WARM_UP, lambda *_: None)
    supervisor = supervisor_of(new_run)
    supervisor.start()
    runs[0].state = State.DEAD
    assert begun.wait(PATIENCE_S)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    may_go_on.set()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert [run.state for run in runs] == [State.STOPPED, State.STOPPED]
