"""The server as a supervised child process: start, wait, watch, stop.

A :mod:`~trtllm_truss.processes.process_guard` between this process and the server kills the server
when this process is gone, for any reason. Any thread may therefore call
:meth:`ServerProcess.start`; the server does not die with that thread.
"""

from __future__ import annotations

import enum
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from trtllm_truss.errors import TritonError
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.processes.child import SHARED_MEMORY, GuardedChild, remove_folder
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.triton.server.command import Launch, launch_environment, new_launch
from trtllm_truss.triton.server.diagnosis import describe_exit, explain_exit, is_port_conflict
from trtllm_truss.triton.server.mpi import close_control_port

logger = logging.getLogger(__name__)

UMASK = 0o077
"""Files of Triton are private."""

_TICK_S = 0.05
_CONNECT_LIMIT_S = 0.5
_OUTPUT_LIMIT_S = 10.0
"""Time to read the last lines of a dead server: they give the cause, such as a taken port."""

_EXIT_LIMIT_S = 5.0
"""Time for a server that failed to load a model to exit.

A failed rank of several waits in ``MPI_Finalize`` (``mpiUtils.cpp``, ``initialize``) for others
that wait for it in a collective: the job never exits by itself (measured with Open MPI 4.1.8 and
5.0.11).
"""
_STARTS = 3
_ORPHAN_GRACE_S = 2.0  # time to exit once this process has died
# ``src/model_lifecycle.cc`` of triton-inference-server/core, and ``src/main.cc`` of .../server; the
# same from r23.10 to r26.07. A server that cannot load a model exits.
_LOAD_FAILED = re.compile(
    r"failed to load '[^']+' version \d+: |^error: creating server: .*failed to load all models"
)


class State(enum.Enum):
    """State of a server; each start is a new :class:`ServerProcess`."""

    NEW = "new"  # not started yet
    STARTING = "starting"  # running, not ready yet
    READY = "ready"  # server and model ready
    STOPPED = "stopped"  # exited because stop() was called
    DEAD = "dead"  # exited by itself


class ServerProcess:
    """One run of the server. All methods may be called from any thread.

    Args:
        command: returns the argument vector for one launch.
        on_line: called with every line of the server's output, on a separate thread; it must be
            quick, because the server waits meanwhile.
        http_port: of Triton; 0 for any free one, None to keep its HTTP endpoint closed.
        grpc_port: of Triton; None for any free one.

    Attributes:
        launch: ports, run id and shared-memory prefix of the current start; None before it.
    """

    def __init__(
        self,
        command: Callable[[Launch], Sequence[str]],
        environment: Mapping[str, str],
        *,
        on_line: Callable[[str], None] | None = None,
        http_port: int | None = None,
        grpc_port: int | None = None,
    ) -> None:
        self.launch: Launch | None = None
        self._command = command
        self._environment = environment
        self._http_port, self._grpc_port = http_port, grpc_port
        self._lock = threading.RLock()
        self._state = State.NEW
        self._starts = 0
        self._was_ready = False
        self._stopping = False
        self._child: GuardedChild | None = None
        self._on_line = on_line
        self._load_failed_s: float | None = None
        self._exit_status = 0
        self._callbacks: list[Callable[[TritonError], None]] = []

    def __repr__(self) -> str:
        return f"<ServerProcess {self._state.value} pid={self.pid}>"

    @property
    def state(self) -> State:
        return self._state

    @property
    def pid(self) -> int | None:
        """Return the process guard's process id; None before the start."""
        return self._child.pid if self._child else None

    @property
    def tail(self) -> tuple[str, ...]:
        return self._child.tail if self._child else ()

    @property
    def grpc_address(self) -> str:
        assert self.launch is not None, "the server was not started"
        return f"{LOOPBACK}:{self.launch.ports.grpc}"

    @property
    def cause(self) -> str:
        """Explain in one or two sentences why the server exited."""
        return self._death().message

    def on_exit(self, callback: Callable[[TritonError], None]) -> None:
        """Call ``callback`` once if a server that was ready exits without stop().

        The watching thread calls it, with the error that later calls of :meth:`wait_until_ready`
        raise.
        """
        self._callbacks.append(callback)

    def start(self) -> None:
        """Start the server and return at once.

        Raises:
            TritonError: it was started or stopped before, or cannot be started at all.
        """
        with self._lock:
            if self._state is not State.NEW:
                raise TritonError(f"This server was started before; it is {self._state.value}.")
            self._state = State.STARTING
            self._spawn()

    def wait_until_ready(self, deadline_s: float) -> None:
        """Wait until server and model are ready; check first for a dead child.

        If a port was taken between choosing and opening it, the server is restarted on other ports
        within the same deadline. A server that was ready is never restarted here. As process 1 of a
        container, this process survives the SIGTERM that it re-raises after its clean-up; it then
        exits only when its threads finish.

        Raises:
            TritonError: the server died, was stopped, failed to load a model, or is not ready after
                ``deadline_s``; or this process is exiting.
        """
        deadline = time.monotonic() + deadline_s
        assert self._child is not None, "the server was not started"
        while True:
            if self._child.wait(_TICK_S) is not None:
                self._child.wait_for_output(_OUTPUT_LIMIT_S)
                if not self._start_on_other_ports():
                    raise self._death()
            elif self._is_ready():
                return
            elif not threading.main_thread().is_alive():
                raise TritonError("Triton is stopped because the server's process is exiting.")
            elif self._fails_to_exit():
                raise TritonError(f"Triton failed to load a model. {explain_exit(self.tail)}")
            elif time.monotonic() > deadline:
                raise TritonError(
                    f"Triton was not ready after {deadline_s:g} s. {explain_exit(self.tail)}"
                )

    def refuses_connections(self) -> bool:
        """Return True if nothing listens on Triton's gRPC port any more.

        A full backlog of a busy or stopped server is not a refusal.
        """
        assert self.launch is not None, "the server was not started"
        try:
            _connect(self.launch.ports.grpc)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False

    def wait_until_ended(self, tick_s: float, is_over: Callable[[], bool]) -> int:
        """Wait for a rank above 0 to exit; it never becomes ready; return its exit status.

        Args:
            tick_s: interval between checks of `is_over`.
            is_over: returns True if the rank should be stopped.

        Raises:
            TritonError: it failed to load a model, or exited by itself with a non-zero status.
        """
        assert self._child is not None, "the server was not started"
        while (status := self._child.wait(tick_s)) is None:
            if self._fails_to_exit():
                self.stop(0)
                raise TritonError(f"Triton failed to load a model. {explain_exit(self.tail)}")
            if is_over():
                self.stop(0)
        if status and not self._stopping:
            self._child.wait_for_output(_OUTPUT_LIMIT_S)
            raise self._death()
        return status

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the server and everything it started; return when nothing is left.

        Args:
            timeout_s: time to exit by itself before it is killed.
        """
        with self._lock:
            self._stopping = True
            child = self._child
            if child is None:
                self._state = State.STOPPED
                return
        child.end(timeout_s)

    def _spawn(self) -> None:
        with ExitStack() as undo:
            try:
                launch = new_launch(self._http_port, self._grpc_port)
                undo.callback(remove_folder, launch.folder)
                self._load_failed_s = None
                child = GuardedChild(
                    self._command(launch),
                    launch_environment(self._environment, launch),
                    run_id=launch.run_id,
                    orphan_grace_s=_ORPHAN_GRACE_S,
                    shm_prefix=launch.shm_prefix,
                    folder=launch.folder,
                    umask=UMASK,
                    on_line=self._on_output,
                    on_exit=self._has_ended,
                    name="triton",
                )
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                raise TritonError(f"Triton could not be started: {error}.") from error
            undo.pop_all()
        self._starts += 1
        self.launch, self._child = launch, child

    def _on_output(self, line: str) -> None:
        if self._load_failed_s is None and _LOAD_FAILED.search(line):
            self._load_failed_s = time.monotonic()
        if self._on_line is not None:
            self._on_line(line)

    def _has_ended(self, status: int) -> None:
        with self._lock:
            self._exit_status = status
            self._state = State.STOPPED if self._stopping else State.DEAD
        if self._was_ready and not self._stopping:
            error = self._death()
            for callback in self._callbacks:
                callback(error)

    def _is_ready(self) -> bool:
        launch = self.launch
        assert launch is not None
        _make_private(launch.shm_prefix)  # early and often: an open segment stays readable
        # Triton opens its metrics port last.
        if not all(map(_is_open, filter(None, (launch.ports.metrics, launch.ports.http)))):
            return False
        from trtllm_truss.triton.client.client import is_ready  # while Triton starts

        if not is_ready(self.grpc_address, MODEL_NAME, server_id=launch.run_id):
            return False
        if not close_control_port(launch.run_id, launch.ports.mpi):
            logger.warning(
                "mpirun still listens on every address; close its ports to the network "
                "(docs/deploy.md)"
            )
        with self._lock:
            if self._state is State.STARTING:
                self._state = State.READY
                self._was_ready = True
            return self._state is State.READY

    def _fails_to_exit(self) -> bool:
        failed_s = self._load_failed_s
        return failed_s is not None and time.monotonic() > failed_s + _EXIT_LIMIT_S

    def _start_on_other_ports(self) -> bool:
        with self._lock:
            if self._was_ready or self._stopping or self._starts == _STARTS:
                return False
            if not is_port_conflict(self.tail):
                return False
            logger.warning("A port was taken while Triton started; trying others")
            self._state = State.STARTING
            self._spawn()
            return True

    def _death(self) -> TritonError:
        if self._state is State.STOPPED:
            return TritonError("Triton was stopped.")
        status = self._exit_status
        return TritonError(f"Triton {describe_exit(status)}. {explain_exit(self.tail, status)}")


def _is_open(port: int) -> bool:
    try:
        _connect(port)
    except OSError:
        return False
    return True


def _connect(port: int) -> None:
    socket.create_connection((LOOPBACK, port), _CONNECT_LIMIT_S).close()


def _make_private(shm_prefix: str) -> None:
    """Restrict a run's shared-memory segments to their owner.

    Triton's Python backend passes prompts and answers through them. It creates each with mode 0644,
    regardless of the umask (Boost's default).
    """
    for segment in SHARED_MEMORY.glob(f"{shm_prefix}*"):
        with suppress(OSError):  # it may just have been removed
            segment.chmod(0o600)
