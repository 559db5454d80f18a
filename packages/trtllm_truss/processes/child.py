"""Child processes: their environment, start, output, exit and clean-up.

All code in a child can read its environment: backends, conversion scripts, a checkpoint's Python.
It contains the variables that children are known to read, without secrets.

A `GuardedChild` runs behind a `process_guard`, which kills it when this process is gone.

Temporary folders are registered with a `folder_guard`, which removes them when this process is
gone, however it exits. `end_everything` is for an exit that skips all other clean-up.

A run leaves remains only if it and its guards are killed at once. Its folder and its shared-memory
names come with a file that the responsible processes keep locked (flock). The kernel releases the
lock however they exit, also for other containers that share the memory and see other process ids.
An unlocked file therefore has no owner; the next start removes it and its run.
"""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trtllm_truss.processes import folder_guard, process_guard
from trtllm_truss.processes.mpi_job import job_variables
from trtllm_truss.processes.secret_variables import PROXIES, is_secret

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TZ", "LANG", "LANGUAGE"),
        *("TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "GLIBC_TUNABLES", "TOKENIZERS_PARALLELISM"),
        *("CC", "CXX", "CPATH", "LIBRARY_PATH", "OPAL_PREFIX", "REQUESTS_CA_BUNDLE"),
    }
)
_PREFIXES = (
    # the system and Python
    *("LC_", "LD_", "XDG_", "MALLOC_", "TCMALLOC_", "PYTHON", "CONDA_", "SSL_CERT_"),
    # GPUs and their libraries
    *("CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVTX_", "NSYS_", "NVSHMEM_", "NCCL_"),
    *("TRT_", "TENSORRT_", "TRTLLM_", "TLLM_", "TRITON_", "MODELOPT_", "FLASHINFER_"),
    *("DG_JIT_", "CUTE_DSL_"),
    *("TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_"),
    # communication between processes
    *("MPI_", "OMPI_", "ORTE_", "PMIX_", "PRTE_", "HWLOC_", "HCOLL_"),
    *("UCX_", "UCC_", "SHARP_", "FI_", "IBV_", "MLX5_", "RDMAV_"),
    # the CPU
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TBB_", "ONEDNN_", "DNNL_", "OPENVINO_", "OV_"),
)


def child_environment(
    variables: Mapping[str, str], passed: Collection[str] = (), *, online: bool = False
) -> dict[str, str]:
    """Select a child's variables; the child is not a rank of a job that this process is in.

    Args:
        passed: names that are always passed (`serving.pass_environment`).
        online: also pass proxies, for a child that downloads.
    """
    of_job = job_variables(variables)
    return {
        name: value
        for name, value in variables.items()
        if name in passed
        or (_is_known(name, online=online) and not is_secret(name, value) and name not in of_job)
    }


def _is_known(name: str, *, online: bool) -> bool:
    known = name in _NAMES or name.startswith(_PREFIXES)
    return known or (online and name.lower() in PROXIES)


logger = logging.getLogger(__name__)

_LOCK = "owner.lock"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
RUN_PREFIX = "trtllm_truss_"
FOLDER_PREFIX = "trtllm-truss-"
_RUN_ID_BYTES = 256
_FOLDER_LIMIT_S = 2.0
_FOLDER_TICK_S = 0.02


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder that only this user can access, and remove it on exit."""
    folder = make_folder(FOLDER_PREFIX)
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        remove_folder(folder)
        if lock is not None:
            os.close(lock)


def make_folder(prefix: str) -> Path:
    """Create a folder that only this user can access among the temporary files.

    Raises:
        OSError: there is no place for temporary files, or no room in it.
        RuntimeError: this process is exiting.
    """
    folder = Path(tempfile.gettempdir(), f"{prefix}{secrets.token_hex(8)}")
    _folders.keep(folder)
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        _folders.drop(folder)
        raise
    return folder


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _folders.drop(folder)


def lock_folder(folder: Path, run_id: str = "") -> int | None:
    """Mark a folder as in use until every holder of the descriptor has closed it.

    Args:
        folder: a temporary folder; its name starts with `FOLDER_PREFIX` or a run's prefix.
        run_id: marks the processes that end with the folder.

    Returns:
        The lock's descriptor; None if files cannot be locked, and then the folder is never swept.
    """
    return _hold(folder / _LOCK, run_id)


def lock_segments(shm_prefix: str, run_id: str) -> int | None:
    """Mark the shared-memory segments of a run as in use, like `lock_folder`."""
    _folders.keep(SHARED_MEMORY / shm_prefix)
    lock = _hold(SHARED_MEMORY / f"{shm_prefix}{_LOCK}", run_id)
    if lock is None:
        _folders.drop(SHARED_MEMORY / shm_prefix)
    return lock


def sweep() -> None:
    """Remove processes, segments and folders of this user's runs whose owners are dead."""
    temporary = Path(tempfile.gettempdir())
    for lock in (
        *SHARED_MEMORY.glob(f"{RUN_PREFIX}*_{_LOCK}"),
        *temporary.glob(f"{RUN_PREFIX}*/{_LOCK}"),
        *temporary.glob(f"{FOLDER_PREFIX}*/{_LOCK}"),
    ):
        descriptor = _taken_over(lock)
        if descriptor is not None:
            try:
                _remove_run(lock, os.read(descriptor, _RUN_ID_BYTES).decode())
                process_guard.remove_env_folders(os.fstat(descriptor).st_mtime)
            except (OSError, ValueError) as error:
                logger.warning("cannot remove what a killed run left: %s", error)
            finally:
                os.close(descriptor)


def _remove_run(lock: Path, run_id: str) -> None:
    if run_id:
        process_guard.kill_marked(run_id)
    if lock.parent == SHARED_MEMORY:
        what = lock.name.removesuffix(_LOCK)
        process_guard.remove_segments(what)
    else:
        what = str(lock.parent)
        _remove_folder_in_use(lock)
    logger.info("removed what a killed run left: %s", what)


def _remove_folder_in_use(lock: Path) -> None:
    """Remove a run's folder, whose processes may still write there although its server is dead.

    Triton exits by itself, and so does the check of guides; a process that was being started has
    neither the command line nor the environment by which it is found.
    """
    folder = lock.parent
    deadline = time.monotonic() + _FOLDER_LIMIT_S
    while True:
        process_guard.kill_users(f"{folder}{os.sep}")
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            lock.touch(0o600)  # fails if the folder is gone; else a later try finds it
        if not folder.exists():
            return
        if time.monotonic() >= deadline:
            raise OSError(errno.ENOTEMPTY, "files are still written there", str(folder))
        time.sleep(_FOLDER_TICK_S)


def _hold(lock: Path, run_id: str) -> int | None:
    """Create a locked file; renamed into place locked, so it is never seen unlocked."""
    unnamed = lock.with_name(f"{lock.name}.{os.getpid()}")
    try:
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, run_id.encode())
        unnamed.rename(lock)
    except OSError:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
        return None
    return descriptor


def _taken_over(lock: Path) -> int | None:
    """Lock a file whose owner is dead; return None if it is in use, gone or another user's."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(descriptor)
        if opened.st_uid == os.geteuid() and os.path.samestat(opened, lock.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


class _FolderGuard:
    """The program that removes the files of this process; it runs while there are any.

    Thread-safe. If its process cannot be started, the next start removes the remains.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: set[Path] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def keep(self, prefix: Path) -> None:
        """Register all paths with a prefix for removal once this process is gone.

        Raises:
            RuntimeError: this process is exiting.
        """
        with self._lock:
            self.require_future()
            if self._process is None:
                self._start()
            self._kept.add(prefix)
            self._send(b"+", prefix)

    def drop(self, prefix: Path) -> None:
        """Unregister what has been removed."""
        with self._lock:
            self._kept.discard(prefix)
            self._send(b"-", prefix)
            if not self._kept and self._process is not None and not self._is_ending:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def require_future(self) -> None:
        """Raise RuntimeError if this process is exiting."""
        if self._is_ending:
            raise RuntimeError("this process is ending")

    def refuse(self) -> None:
        """Register nothing from now on."""
        with self._lock:
            self._is_ending = True

    def remove(self) -> None:
        """Have everything removed, and wait for it."""
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None and process.stdout is not None:
                process.stdin.close()
                select.select([process.stdout], [], [], _REMOVAL_LIMIT_S)

    def _start(self) -> None:
        command = (sys.executable, "-I", "-S", folder_guard.__file__, str(os.getpid()))
        with suppress(OSError):
            self._process = subprocess.Popen(
                command,
                env=child_environment(os.environ),
                cwd=os.sep,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )

    def _send(self, order: bytes, prefix: Path) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it was killed, or is removing
                self._process.stdin.write(order + os.fsencode(prefix) + b"\0")


_REMOVAL_LIMIT_S = 5.0
_folders = _FolderGuard()
_runs: weakref.WeakSet[GuardedChild] = weakref.WeakSet()
_runs_lock = threading.RLock()


def _begin_anew() -> None:
    """Reset guard and runs in a forked process: they belong to its parent."""
    global _folders, _runs_lock
    _folders = _FolderGuard()
    _runs_lock = threading.RLock()
    _runs.clear()


os.register_at_fork(after_in_child=_begin_anew)


def end_everything() -> None:
    """Stop all runs and remove all folders of this process, which exits next without clean-up.

    Other threads may continue; whatever they start from now on fails.
    """
    with _runs_lock:
        _folders.refuse()
        runs = [*_runs]
    for run in runs:
        run.stop(0)
    for run in runs:
        run.end(0)
    _folders.remove()


_TAIL_LINES = 200
_LINE_CHARACTERS = 1 << 16
_READER_LIMIT_S = 1.0
_GUARD_MARGIN_S = 1.5


class Child:
    """A running program with two threads, which read its output and wait for its exit.

    All methods may be called from any thread and from signal handlers.

    Args:
        process: has a pipe as standard output or standard error; this object reads, reaps and
            closes it.
        on_line: receives each line without its line break, on a thread; it must be quick, because
            the program blocks while its pipe is full.
        on_exit: receives the exit status when nothing of the program is left, on a thread and
            before `wait` returns.
        name: name of the threads, also used in the log.
        newline: the line break, as `io.TextIOWrapper` accepts it. Lines of more than 65,536
            characters arrive in pieces.

    Raises:
        RuntimeError: no thread can be started; the program is killed.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        on_line: Callable[[str], None] | None = None,
        on_exit: Callable[[int], None] | None = None,
        name: str = "child",
        newline: str | None = "\n",
    ) -> None:
        self._process = process
        self._on_line, self._on_exit, self._name = on_line, on_exit, name
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.RLock()  # the process is not reaped while it is held
        self._ended = threading.Event()
        pipe = process.stdout or process.stderr
        assert pipe is not None
        output = io.TextIOWrapper(pipe, encoding="utf-8", errors="replace", newline=newline)
        self._reader = threading.Thread(target=self._read, args=(output,), name=f"{name}-output")
        watcher = threading.Thread(target=self._watch, name=f"{name}-watch")
        self._reader.daemon = watcher.daemon = True
        try:
            self._reader.start()
            watcher.start()
        except RuntimeError:
            self.kill()
            self._reap()
            if not self._reader.is_alive():
                output.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the output."""
        return tuple(self._lines.copy())

    @property
    def status(self) -> int | None:
        """The exit status once nothing of the program is left; None before."""
        return self._process.returncode if self._ended.is_set() else None

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait until nothing of the program is left; return `status`."""
        self._ended.wait(limit_s)
        return self.status

    def wait_for_output(self, limit_s: float | None = None) -> None:
        """Wait until every line was passed on; `wait` gives a slow reader a second."""
        self._reader.join(limit_s)

    def terminate(self) -> None:
        """Send SIGTERM; return at once."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program; return at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process.returncode is None:  # `Popen.send_signal` would reap it
                self._send(number)

    def _send(self, number: int) -> None:
        os.kill(self.pid, number)

    def _remove_remains(self) -> None:
        """Remove the remains of a program that exited, before its process id is reused."""

    def _read(self, output: io.TextIOWrapper) -> None:
        has_failed = False
        with output:
            while line := output.readline(_LINE_CHARACTERS):
                line = line.rstrip()
                self._lines.append(line)
                try:
                    if self._on_line is not None:
                        self._on_line(line)
                except Exception:
                    if not has_failed:
                        logger.exception("cannot forward the output of %s", self._name)
                    has_failed = True

    def _watch(self) -> None:
        try:
            status = self._reap()
            self._reader.join(_READER_LIMIT_S)
            if self._on_exit is not None:
                self._on_exit(status)
        finally:
            self._ended.set()

    def _reap(self) -> int:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._clean_up()
        with self._lock:
            status = self._process.wait()
            if self._process.stdin is not None:
                with suppress(OSError):  # a line that was never read
                    self._process.stdin.close()
        return status

    def _clean_up(self) -> None:
        try:
            self._remove_remains()
        except OSError:
            logger.exception("cannot remove what %s left", self._name)


class GuardedChild(Child):
    """A command behind a process guard, which kills the command when this process is gone.

    When the command has exited, guard and child remove every process that it left, its
    shared-memory segments and its folder.

    Args:
        command: the argument vector.
        environment: variables of the command; the mark of the run is added.
        run_id: marks every process of the run in its environment.
        orphan_grace_s: grace period of the command after this process has died.
        shm_prefix: prefix of the names of the run's shared-memory segments.
        folder: the run's folder.
        umask: umask of the command; -1 keeps ours.
        on_line: see `Child`; the output includes standard error.

    Raises:
        OSError: no process can be started.
        RuntimeError: no thread can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        run_id: str,
        orphan_grace_s: float,
        shm_prefix: str = "",
        folder: Path | None = None,
        cwd: Path | None = None,
        umask: int = -1,
        on_line: Callable[[str], None] | None = None,
        on_exit: Callable[[int], None] | None = None,
        name: str = "child",
        newline: str | None = "\n",
    ) -> None:
        self._name, self._started_s = name, time.time()
        self._run_id, self._shm_prefix, self._folder = run_id, shm_prefix, folder
        with _runs_lock:  # either `end_everything` finds it, or it is refused
            try:
                _folders.require_future()
                process = self._start_guard(command, environment, orphan_grace_s, cwd, umask)
            except BaseException:
                self._clean_up()
                raise
            super().__init__(process, on_line=on_line, on_exit=on_exit, name=name, newline=newline)
            _runs.add(self)

    def _start_guard(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        orphan_grace_s: float,
        cwd: Path | None,
        umask: int,
    ) -> subprocess.Popen[bytes]:
        run_id, shm_prefix, folder = self._run_id, self._shm_prefix, self._folder
        guard = (sys.executable, "-I", "-S", process_guard.__file__, str(os.getpid()))
        names = (run_id, shm_prefix, str(folder or ""), str(orphan_grace_s))
        held = (
            lock_folder(folder, run_id) if folder else None,
            lock_segments(shm_prefix, run_id) if shm_prefix else None,
        )
        locks = [lock for lock in held if lock is not None]
        try:
            return subprocess.Popen(
                [*guard, *names, *command],
                env={**environment, process_guard.RUN_MARKER: run_id},
                cwd=cwd,
                umask=umask,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=locks,
            )
        finally:
            for lock in locks:  # the guard is responsible for them now
                os.close(lock)
            if folder is not None:  # the guard removes it after its processes
                _folders.drop(folder)
            if shm_prefix:
                _folders.drop(SHARED_MEMORY / shm_prefix)

    def stop(self, patience_s: float) -> None:
        """Ask the command to exit; return at once.

        It is killed after `patience_s`. A later call can only shorten this time.
        """
        with self._lock:
            if self._process.returncode is None:
                assert self._process.stdin is not None
                process_guard.request_stop(self._process.stdin, patience_s)

    def end(self, patience_s: float) -> None:
        """Stop the command and wait until nothing of it is left; kill a guard that hangs."""
        self.stop(patience_s)
        limit_s = patience_s + process_guard.SWEEP_LIMIT_S + _GUARD_MARGIN_S
        if self.wait(limit_s) is None:
            logger.warning("the process guard of %s did not exit in time; killing it", self._name)
            self.kill()
            self.wait(limit_s)

    def _remove_remains(self) -> None:
        """Repeat the guard's work; something is left only if the guard was killed."""
        process_guard.kill_marked(self._run_id)
        process_guard.remove_segments(self._shm_prefix)
        process_guard.remove_env_folders(self._started_s)
        if self._folder is not None:
            remove_folder(self._folder)
