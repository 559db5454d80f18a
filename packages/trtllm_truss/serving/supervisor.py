"""Start one engine, watch it, and restart it in place up to a limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trtllm_truss.errors import TritonError, unavailable
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.processes.limits import is_out_of_files
from trtllm_truss.settings.model import Serving
from trtllm_truss.triton.server.process import ServerProcess, State

if TYPE_CHECKING:
    from trtllm_truss.triton.client.client import Trial, TritonClient

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_LONGEST_BACKOFF_S = 60.0
_PATIENCE_S = 10.0
_CLOSED_LIMIT_S = 2.0
"""Time for mpirun to exit after Triton has closed its port.

mpirun of Open MPI 5.0.11 kept running after all its ranks had been killed, about once in a thousand
losses of rank 0.
"""
_FILES_WAIT_S = 1.0
_QUIET_S = 60.0


class Supervisor:
    """Restarts an engine that exits or hangs. All methods are thread-safe.

    A run that exits, or hangs while it has requests, is killed with all its processes; streams in
    flight fail with their connection. The next run starts after a back-off.

    Args:
        new_run: creates a run without starting it.
        limits: deadlines and the restart policy.
        status: receives exits and restarts.
        first_requests: returns the requests that prove readiness; called once Triton is ready.
        tensorrt_llm_version: version for which the model repository was rendered.
        on_restart: called before each restart, from the supervisor's thread.
        instances: number of engine instances in the server.
        give_up: called after the last failed restart, from the supervisor's thread.
    """

    def __init__(
        self,
        new_run: Callable[[], ServerProcess],
        limits: Serving,
        heartbeat: EngineHeartbeat,
        status: ServiceStatus,
        *,
        first_requests: Callable[[], Sequence[Trial]],
        tensorrt_llm_version: str,
        on_restart: Callable[[], None],
        give_up: Callable[[], None],
        instances: int = 1,
    ) -> None:
        self._new_run = new_run
        self._limits = limits
        self._heartbeat = heartbeat
        self._status = status
        self._first_requests = first_requests
        self._version = tensorrt_llm_version
        self._on_restart = on_restart
        self._give_up = give_up
        self._instances = instances
        self._run: ServerProcess | None = None
        self._client: TritonClient | None = None
        self._answered_before = 0
        self._stopping = threading.Event()
        self._run_ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._restarts = 0
        self._told_of_files_s: float | None = None
        self._closed_since_s: float | None = None

    @property
    def is_healthy(self) -> bool:
        run = self._run
        return self._client is not None and run is not None and run.state is State.READY

    @property
    def client(self) -> TritonClient:
        """The connection to the current run.

        Raises:
            EngineUnavailable: the engine is not ready.
        """
        client = self._client
        if client is None or not self.is_healthy:
            raise unavailable("the engine is starting; try again shortly.")
        return client

    @property
    def metrics_port(self) -> int | None:
        """Triton's metrics port; None while the engine is down."""
        run = self._run
        return run.launch.ports.metrics if self.is_healthy and run and run.launch else None

    def start(self) -> None:
        """Start the first run and return once it has generated a token.

        Raises:
            TritonError: the run did not become ready; it was cleaned up.
        """
        self._start_run()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the engine for good, including a start in progress."""
        self._stopping.set()
        self._run_ended.set()
        self._end_run(_PATIENCE_S if self._thread is not None else 0)
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_TICK_S)
            self._end_run()  # a restart may have started another one

    def _end_run(self, patience_s: float = _PATIENCE_S) -> None:
        self._client = None
        if self._run is not None:
            self._run.stop(patience_s)

    def _start_run(self) -> None:
        run = self._run = self._new_run()
        deadline = time.monotonic() + self._limits.start_timeout_s
        try:
            if self._stopping.is_set():
                raise TritonError("Triton was stopped.")
            run.start()
            # While Triton starts.
            from trtllm_truss.triton.client.client import TritonClient, warm_up

            run.wait_until_ready(self._limits.start_timeout_s)
            left_s = max(1.0, deadline - time.monotonic())
            run.on_exit(lambda _: self._run_ended.set())
            warm_up(run.grpc_address, self._first_requests(), left_s, self._version)
        except BaseException:
            run.stop(0)
            raise
        self._heartbeat.restarted()
        self._client = TritonClient(
            run.grpc_address, tensorrt_llm_version=self._version, instances=self._instances
        )

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._run_ended.wait(_TICK_S)
            self._run_ended.clear()
            try:
                reason = None if self._stopping.is_set() else self._failure()
            except Exception as error:
                logger.exception("the engine cannot be watched")
                reason = f"it cannot be watched ({type(error).__name__}: {error})."
                self._end_run(0)
            if reason is None or self._stopping.is_set():
                continue
            self._status.engine_exited(reason)
            logger.error("engine exited: %s", reason)
            if not self._restart():
                return

    def _failure(self) -> str | None:
        """Return the failure of the current run, if any; stop a hung or broken run."""
        run = self._run
        assert run is not None
        if run.state is not State.READY:
            self._client = None
            return run.cause
        if (broken := self._heartbeat.broken) is not None:
            self._client = None
            run.stop(0)
            return f"it fails every request: {broken}"
        if self._is_closed(run):
            self._client = self._closed_since_s = None
            run.stop(0)
            return "Triton has stopped listening, but mpirun has not exited."
        silent_for_s = self._heartbeat.silent_for_s
        if silent_for_s <= self._limits.hang_timeout_s:
            return None
        self._client = None
        run.stop(0)
        return (
            f"it generated no token for {silent_for_s:.0f} s for any of its requests "
            "(serving.hang_timeout_s)."
        )

    def _is_closed(self, run: ServerProcess) -> bool:
        """Return True if Triton has closed its port for good.

        At SIGTERM, Triton first closes it and then finishes its requests.
        """
        if self._heartbeat.is_waited_for or not run.refuses_connections():
            self._closed_since_s = None
            return False
        now_s = time.monotonic()
        if self._closed_since_s is None:
            self._closed_since_s = now_s
        return now_s >= self._closed_since_s + _CLOSED_LIMIT_S

    def _start_with_files(self) -> None:
        """Start a run once descriptors are available: callers use them up temporarily."""
        while True:
            try:
                self._start_run()
                return
            except Exception as error:
                if self._stopping.is_set() or not is_out_of_files(error):
                    raise
                now_s = time.monotonic()
                if self._told_of_files_s is None or now_s >= self._told_of_files_s + _QUIET_S:
                    self._told_of_files_s = now_s
                    logger.warning("the restart waits for descriptors (ulimit -n): %s", error)
            self._stopping.wait(_FILES_WAIT_S)

    def _restart(self) -> bool:
        """Restart within the limit; return False when giving up or stopping."""
        if self._heartbeat.answered > self._answered_before:
            self._restarts = 0  # the last run served requests, so the failures are not consecutive
        self._answered_before = self._heartbeat.answered
        while self._restarts < self._limits.restart_limit:
            backoff_s = self._limits.restart_backoff_s * 2 ** (self._restarts - 1)
            self._restarts += 1
            first = self._restarts == 1
            if self._stopping.wait(0 if first else min(backoff_s, _LONGEST_BACKOFF_S)):
                return False
            self._status.restart(self._restarts, self._limits.restart_limit)
            logger.warning("restart %d of %d", self._restarts, self._limits.restart_limit)
            try:
                self._on_restart()
                self._start_with_files()
            except TritonError as error:
                self._status.restart_failed(error.message)
                logger.error("restart failed: %s", error.message)
            except Exception as error:  # no thread, or a bug: counts as a failed start
                self._status.restart_failed(f"{type(error).__name__}: {error}")
                logger.exception("restart failed: %s: %s", type(error).__name__, error)
            else:
                self._status.restarted()
                logger.info("engine restarted")
                return True
        reason = (
            f"giving up after {self._restarts} restarts (serving.restart_limit); the process ends "
            "so that the platform replaces it"
        )
        self._status.failed(reason)
        logger.critical(reason)
        self._give_up()
        return False
