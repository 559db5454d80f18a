"""Stopping while a restart is under way: a run that begins late is ended all the same."""

from __future__ import annotations

import threading
from typing import cast

from trtllm_truss.errors import TritonError
from trtllm_truss.serving import supervisor as supervisor_module
from trtllm_truss.serving.activity import Activity
from trtllm_truss.serving.supervisor import Supervisor
from trtllm_truss.settings.model import Serving
from trtllm_truss.triton.process import ServerProcess, State


class Run:
    """A server process as the supervisor sees one; the second one never becomes ready."""

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
        """Nothing: the supervisor also looks by itself."""

    def stop(self, timeout_s: float = 10) -> None:
        self.state = State.STOPPED
        self._stopped.set()


def test_stop_ends_a_run_that_begins_while_it_stops(monkeypatch) -> None:
    runs = [Run(ready=True), Run(ready=False)]
    begun, may_go_on = threading.Event(), threading.Event()

    def new_run() -> ServerProcess:
        run = runs[len(made)]
        made.append(run)
        if len(made) == 2:
            begun.set()
            assert may_go_on.wait(10)
        return cast(ServerProcess, run)

    made: list[Run] = []
    monkeypatch.setattr(supervisor_module, "warm_up", lambda *_: None)
    supervisor = Supervisor(
        new_run,
        Serving(),
        Activity(),
        first_token_id=1,
        tensorrt_llm_version="1.0.0",
        on_restart=lambda: None,
        give_up=lambda: None,
    )
    supervisor.start()
    runs[0].state = State.DEAD
    assert begun.wait(10)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    may_go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()
    assert [run.state for run in runs] == [State.STOPPED, State.STOPPED]
