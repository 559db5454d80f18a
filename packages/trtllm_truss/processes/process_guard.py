"""Keep one command from outliving the process that started it.

Runs as a program, ``python -I -S process_guard.py PARENT_PID RUN_ID SHM_PREFIX FOLDER
ORPHAN_GRACE_S COMMAND…``, between the serving process and the server; imports only the standard
library and starts in about 20 ms. It stops the command when

* its standard input receives ``stop SECONDS``: SIGTERM, then SIGKILL after SECONDS;
* its standard input ends or its parent changes: the parent is gone, even by SIGKILL;
* it receives SIGTERM, SIGINT or SIGHUP itself.

However the command ends, the guard kills every process left, removes their shared-memory segments,
FOLDER (unless empty), and what Triton's Python backend leaves in ``/tmp``. It finds processes by
descent (the guard is a subreaper, so orphans are reparented to it) and by the mark
``TRTLLM_TRUSS_RUN=RUN_ID`` in their environment. Guards among them receive SIGTERM first, because
they have segments to remove. The exit status is the command's, or 128 + the number of the signal
that killed it, as in a shell.

Other modules import the functions that read ``/proc`` and clean up.

If the guard itself is killed, the kernel kills the command (PDEATHSIG: it is bound to the thread
that forks, and the guard has a single thread), and the parent removes the rest with the same
functions.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing them takes as long as the rest of the start
    from collections.abc import Callable
    from typing import IO

RUN_MARKER = "TRTLLM_TRUSS_RUN"

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_NAME = "truss-guard"
_SHM_FOLDER = "/dev/shm"  # noqa: S108 - where Linux keeps POSIX shared memory
_ENV_FOLDER = "/tmp"  # noqa: S108 - written into Triton's Python backend
_ENV_PREFIX = "python_env_"
_ENV_MARGIN_S = 1.0  # clocks may differ by this much
_BACKEND = b"/libtriton_python.so"
_SERVER = "tritonserver"
_STUB = "triton_python_b"
_TICK_S = 0.25
_SHORT_TICK_S = 0.02
_KILL_LIMIT_S = 3.0
_NESTED_LIMIT_S = 3.5
SWEEP_LIMIT_S = _NESTED_LIMIT_S + _KILL_LIMIT_S
"""Maximum time that a guard takes once its command has exited."""


def request_stop(stdin: IO[bytes], patience_s: float) -> None:
    """Ask a guard through its standard input to stop its command.

    Ignore a guard that has exited.
    """
    try:
        # Unbuffered: a buffer would keep data that cannot be written, and fail at exit.
        os.write(stdin.fileno(), f"stop {patience_s}\n".encode())
    except (OSError, ValueError):
        return


def stop_nested_guards() -> None:
    """Stop the guards below this process, and wait a few seconds for them."""
    _signal_until_none(
        lambda: {pid for pid in descendants(os.getpid()) if _is_guard(pid)},
        signal.SIGTERM,
        _NESTED_LIMIT_S,
    )


def kill_leftovers(run_id: str) -> None:
    """Kill every process that descends from this one or carries the run's mark."""
    _signal_until_none(
        lambda: descendants(os.getpid()) | marked_processes(run_id), signal.SIGKILL, _KILL_LIMIT_S
    )


def kill_marked(run_id: str) -> None:
    """Kill every process that carries the run's mark, for a parent that has other children."""
    _signal_until_none(lambda: marked_processes(run_id), signal.SIGKILL, _KILL_LIMIT_S)


def kill_users(folder: str) -> None:
    """Kill the processes of runs that use a folder, except guards.

    A user's command line names the folder, or its `TMPDIR` is below it. Each run's guard cleans up
    after it.

    Args:
        folder: ends with a slash.
    """
    place, mark = folder.encode(), f"{RUN_MARKER}=".encode()

    def uses(pid: int) -> bool:
        environment = read_proc(pid, "environ")
        return b"TMPDIR=" + place in environment or (
            mark in environment and place in read_proc(pid, "cmdline")
        )

    def users() -> set[int]:
        return {pid for pid in {*all_pids()} - {os.getpid()} if uses(pid) and not _is_guard(pid)}

    _signal_until_none(users, signal.SIGKILL, _KILL_LIMIT_S)


def _signal_until_none(find: Callable[[], set[int]], number: int, limit_s: float) -> None:
    """Signal matching processes until none remain or `limit_s` passes."""
    deadline = time.monotonic() + limit_s
    while (pids := find()) and time.monotonic() < deadline:
        for pid in pids:
            _signal(pid, number)
        _wait_for_one_of(pids)


def _wait_for_one_of(pids: set[int]) -> None:
    """Return when one of the processes has exited, or after a tick."""
    files: list[int] = []
    try:
        for pid in pids:
            files.append(os.pidfd_open(pid))
        select.select(files, [], [], _TICK_S)
    except ProcessLookupError:
        return
    except (OSError, ValueError):  # an old kernel, or more files than `select` supports
        time.sleep(_SHORT_TICK_S)
    finally:
        for file in files:
            os.close(file)


def remove_segments(prefix: str) -> None:
    """Remove the shared-memory segments whose names start with ``prefix``."""
    if not prefix or not os.path.isdir(_SHM_FOLDER):  # noqa: PTH112 - pathlib costs 10 ms here
        return
    for entry in os.scandir(_SHM_FOLDER):
        if entry.name.startswith(prefix):
            try:
                os.unlink(entry.path)  # noqa: PTH108
            except OSError:
                continue


def remove_env_folders(since_s: float) -> None:
    """Remove the empty folders that the Python backends of dead Tritons have left since a time.

    The backend creates ``/tmp/python_env_XXXXXX`` before it starts its first stub, and leaves it if
    Triton is killed. Neither name nor contents identify the owner, and a Triton that loses its
    folder aborts when it exits, so a folder stays while any process that may have created it is
    alive. The last of several concurrent runs to exit removes the folders of all.

    Args:
        since_s: the start of the run, in seconds since the epoch.
    """
    if not os.path.isdir(_ENV_FOLDER):  # noqa: PTH112
        return
    folders = {
        entry.path: made_s
        for entry in os.scandir(_ENV_FOLDER)
        if entry.name.startswith(_ENV_PREFIX)
        and (made_s := _made_by_this_user_s(entry.path)) > since_s - _ENV_MARGIN_S
    }
    makers = _env_makers(all_pids()) if folders else {}
    for path, made_s in folders.items():
        if not any(begin_s < made_s < end_s for begin_s, end_s in makers.values()):
            try:
                os.rmdir(path)  # noqa: PTH106
            except OSError:
                continue


def _made_by_this_user_s(path: str) -> float:
    try:
        status = os.lstat(path)
    except OSError:
        return 0.0
    return status.st_ctime if status.st_uid == os.geteuid() else 0.0


def _env_makers(pids: list[int]) -> dict[int, tuple[float, float]]:
    """Return when each process with the Python backend may have created its folder."""
    started_s: dict[int, float] = {}
    stubs_s: dict[int, float] = {}
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for pid in pids:
        if (stat := _stat(pid)) is None:
            continue
        state, parent, ticks = stat
        begin_s = booted_s + ticks * tick_s
        name, maps = name_of(pid), read_proc(pid, "maps")
        if name == _STUB:
            stubs_s[parent] = max(begin_s, stubs_s.get(parent, 0.0))
        elif _BACKEND in maps or (not maps and name == _SERVER and state not in b"ZX"):
            started_s[pid] = begin_s  # without permission to read its maps, go by the name
    return {
        pid: (begin_s - _ENV_MARGIN_S, stubs_s.get(pid, float("inf")) + _ENV_MARGIN_S)
        for pid, begin_s in started_s.items()
    }


def marked_processes(run_id: str) -> set[int]:
    """Return the living processes, other than this one, that were started with the run's mark."""
    mark = f"{RUN_MARKER}={run_id}".encode()
    found = {pid for pid in all_pids() if mark in read_proc(pid, "environ").split(b"\0")}
    return found - {os.getpid()}


def living_processes() -> dict[int, tuple[int, int]]:
    """Return parent and start, in ticks since boot, of every process except zombies."""
    stats = ((pid, _stat(pid)) for pid in all_pids())
    return {pid: stat[1:] for pid, stat in stats if stat is not None and stat[0] not in b"ZX"}


def is_alive(pid: int, started: int | None = None) -> bool:
    """Return False for a zombie, and for another process that reuses the id."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in b"ZX" and started in (None, stat[2])


def descendants(root: int) -> set[int]:
    """Return the living descendants of a process."""
    parents = {pid: parent for pid, (parent, _) in living_processes().items()}
    found: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def listening_sockets() -> dict[str, tuple[str, int]]:
    """Return address (hex) and port of listening TCP sockets, by the links of `open_files`."""
    found = {}
    for table in ("net/tcp", "net/tcp6"):
        for line in read_proc("self", table).decode().splitlines()[1:]:
            _, place, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                address, _, port = place.rpartition(":")
                found[f"socket:[{inode}]"] = address, int(port, 16)
    return found


def open_files(pid: int) -> set[str]:
    """Return the links in /proc/PID/fd; empty if the process has exited."""
    found = set()
    try:
        for file in os.scandir(f"/proc/{pid}/fd"):
            found.add(os.readlink(file.path))  # noqa: PTH115
    except OSError:
        pass
    return found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def name_of(pid: int) -> str:
    """Return the first 15 characters of a process's name; empty if it has exited."""
    return read_proc(pid, "comm").decode(errors="replace").rstrip("\n")


def read_proc(pid: int | str, name: str) -> bytes:
    """Return a file of /proc/PID; empty if the process has exited or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _stat(pid: int) -> tuple[bytes, int, int] | None:
    """Return state, parent, and start in ticks since boot; None if the process is gone.

    In /proc/PID/stat they follow the name, which may contain any character.
    """
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return (fields[0], int(fields[1]), int(fields[19])) if fields else None


def _is_guard(pid: int) -> bool:
    return name_of(pid) == _NAME


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(child: int = 0) -> int | None:
    """Reap all exited processes; return the wait status of ``child`` if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str]) -> int:
    """Start the command in a new session; it dies with this process."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        os.setsid()
        os.closerange(3, 4096)  # our parent's locks, which end with this process
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"error: cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


class _Guard:
    def __init__(self, parent: int, orphan_grace_s: float, command: list[str]) -> None:
        self._parent = parent
        self._orphan_grace_s = orphan_grace_s
        self._kill_at: float | None = None
        self._orphaned = False
        self._child = _spawn(command)  # before the handlers, which the child must not inherit
        self._wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop(self._orphan_grace_s))

    def run(self) -> int:
        """Return the command's wait status once it has exited."""
        while (status := _reap(self._child)) is None:
            self._look_at_parent()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                _signal(self._child, signal.SIGKILL)
            self._wait()
        return status

    def _look_at_parent(self) -> None:
        if not self._orphaned and os.getppid() != self._parent:
            self._orphaned = True
            self._stop(self._orphan_grace_s)

    def _wait(self) -> None:
        sources = [self._wakeup] if self._orphaned else [self._wakeup, 0]
        patience = _TICK_S
        if self._kill_at is not None:
            patience = min(patience, max(0.0, self._kill_at - time.monotonic()) + 0.001)
        ready, _, _ = select.select(sources, [], [], patience)
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        if 0 in ready:
            self._obey(os.read(0, 4096))

    def _obey(self, order: bytes) -> None:
        if not order:
            self._orphaned = True
            self._stop(self._orphan_grace_s)
        for line in order.decode().splitlines():
            self._stop(float(line.split()[1]))

    def _stop(self, grace_s: float) -> None:
        """Ask the command to exit; further calls can only shorten the grace period."""
        kill_at = time.monotonic() + grace_s
        if self._kill_at is None:
            self._kill_at = kill_at
            _signal(self._child, signal.SIGTERM)
        self._kill_at = min(self._kill_at, kill_at)


def main(arguments: list[str]) -> int:
    started_s = time.time()
    parent, run_id, shm_prefix, folder, orphan_grace_s, *command = arguments
    _prctl(_PR_SET_NAME, _NAME.encode())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    status = _Guard(int(parent), float(orphan_grace_s), command).run()
    stop_nested_guards()
    kill_leftovers(run_id)
    remove_segments(shm_prefix)
    remove_env_folders(started_s)
    if folder:
        import shutil  # takes as long as the rest of the start

        shutil.rmtree(folder, ignore_errors=True)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
