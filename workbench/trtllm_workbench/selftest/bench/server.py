"""`trtllm-truss serve` as a child, with everything that it must not leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import trtllm_truss
import trtllm_workbench
from trtllm_truss.errors import StartupError
from trtllm_truss.processes.leftovers import RUN_PREFIX, SHARED_MEMORY
from trtllm_truss.processes.process_guard import descendants
from trtllm_truss.status import STATUS_VARIABLE, State, StatusReader
from trtllm_truss.triton.server.mpi import listening_sockets, open_files
from trtllm_truss.triton.server.ports import LOOPBACK
from trtllm_workbench.selftest.bench.calls import Api

_PR_SET_PDEATHSIG = 1
_PATHS = [
    str(Path(package.__path__[0]).resolve().parent) for package in (trtllm_truss, trtllm_workbench)
]
_TAIL_LINES = 30
_TICK_S = 0.02
_END_LIMIT_S = 60.0


class ChildServer:
    """One run of `trtllm-truss serve`; a context manager that ends it.

    Args:
        truss: the Truss's folder.
        config: its configuration.
        port: HTTP port.
        temporary: folder for temporary files, created; its path should be short.
        show: receives each line of the server's log.
        environment: changes to this process's environment.

    Attributes:
        api: its routes.
        seconds: duration of the start.
    """

    def __init__(
        self,
        truss: Path,
        config: Path,
        port: int,
        temporary: Path,
        show: Callable[[str], None],
    ) -> None:
        self.api = Api(port)
        self.seconds = 0.0
        self._command = [
            *(sys.executable, "-m", "trtllm_truss", "serve", "--truss", str(truss)),
            *("--config", str(config), "--port", str(port)),
        ]
        self._show = show
        self._temporary = temporary
        self._status_file = temporary.with_suffix(".status")
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._seen: set[int] = set()

    def __enter__(self) -> ChildServer:
        started = time.monotonic()
        paths = [*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._temporary.mkdir()
        self._status = StatusReader(self._status_file)
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "TMPDIR": str(self._temporary),
                    STATUS_VARIABLE: str(self._status_file),
                },
                preexec_fn=_end_with_parent,
            )
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - started
        self.remember()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs, and remove the temporary files."""
        if self._child is not None:
            if self._child.poll() is None:
                self.remember()
                self._child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(_END_LIMIT_S)
            for pid in self.left_processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._child.kill()
            self._child.wait()
        if self._reader is not None:
            self._reader.join()
            assert self._child is not None
            assert self._child.stderr is not None
            self._child.stderr.close()
        self._status.close()
        self._status_file.unlink(missing_ok=True)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def end(self) -> int:
        """Send SIGTERM and return the exit status.

        Raises:
            subprocess.TimeoutExpired: the server still runs after a minute.
        """
        assert self._child is not None
        self.remember()
        self._child.terminate()
        return self._child.wait(_END_LIMIT_S)

    def remember(self) -> None:
        """Note the processes that run now; all of them must be gone at the end."""
        assert self._child is not None
        self._seen |= descendants(self._child.pid)

    def named(self, name: str) -> list[int]:
        """Return the processes below the server with a name, in the order of their ids."""
        assert self._child is not None
        self.remember()
        return sorted(pid for pid in descendants(self._child.pid) if _name(pid) == name)

    def command_lines(self) -> dict[int, list[str]]:
        """Return the arguments of the processes below the server."""
        assert self._child is not None
        self.remember()
        found = {}
        for pid in sorted(descendants(self._child.pid)):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found[pid] = [part.decode(errors="replace") for part in line[:-1]]
        return found

    def public_ports(self) -> set[int]:
        """Return the ports on which processes below the server listen for other machines.

        Truss's server itself listens on its HTTP port, as its platform wants it.
        """
        assert self._child is not None
        public = {
            link: port
            for link, (address, port) in listening_sockets().items()
            if set(address) == {"0"} and port != self.api.port  # any address, of either family
        }
        pids = descendants(self._child.pid)
        return {public[link] for pid in pids for link in public.keys() & open_files(pid)}

    def left_processes(self) -> list[int]:
        """Return those of the remembered processes that still run."""
        return sorted(pid for pid in self._seen if _is_alive(pid))

    def left_files(self) -> list[str]:
        """Return shared-memory segments and temporary files of the run."""
        prefixes = tuple(f"{RUN_PREFIX}{pid}_" for pid in self._seen)
        segments = (str(path) for path in _entries(SHARED_MEMORY) if path.name.startswith(prefixes))
        return [*segments, *map(str, _entries(self._temporary))]

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        while (status := self._status.read()) is None or status.state is not State.READY:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_TICK_S)
                assert self._reader is not None
                self._reader.join()
                raise StartupError(self._cause())

    def _cause(self) -> str:
        assert self._child is not None
        status = self._status.read()
        last = status.reason if status is not None else " ".join(list(self._tail)[-1:])
        return last or f"`trtllm-truss serve` exited with status {self._child.returncode}"

    def _read(self) -> None:
        assert self._child is not None
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._tail.append(line.rstrip())
            self._show(line.rstrip())


def is_listening(port: int) -> bool:
    """Return whether anything accepts connections on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _entries(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(folder.iterdir())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").rstrip()
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
