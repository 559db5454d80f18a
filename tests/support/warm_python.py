"""Python processes forked from one that has imported Truss and the command line.

The import takes 1.5 s of CPU time, a third of what a server with the fake engine takes to start. A
forked process has its own environment, folder and output, and runs a module as `python -m` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests.support.paths import ROOT

_PRELOADED = (
    *(f"trtllm_workbench.cli.{name}" for name in ("main", "serve", "demo")),
    "trtllm_truss.cli.rank",
    "truss.cli.cli",
    "truss.contexts.local_loader.docker_build_emulator",
)
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_REQUEST_BYTES = 1 << 17
_NUMBER_BYTES = 12


class WarmProcess:
    """A process with the methods of `Popen` that the tests need.

    Args:
        arguments: a module or the path of a script, and its arguments.
        stderr: an open file or its number; standard input is empty.
        stdout: the same; dropped by default.
        env: replaces the environment.
        cwd: the folder.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stderr: IO[str] | int,
        stdout: IO[str] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        request = {
            "arguments": self.args,
            "env": {**(env or os.environ)},
            "cwd": str(cwd or Path.cwd()),
        }
        self._status, status = os.pipe()
        with Path(os.devnull).open("r+b") as nothing, os.fdopen(status, "wb") as written:
            files = (nothing, nothing if stdout is None else stdout, stderr, written)
            numbers = [file if isinstance(file, int) else file.fileno() for file in files]
            socket.send_fds(_zygote().connection, [json.dumps(request).encode()], numbers)
        self.pid = int(os.read(self._status, _NUMBER_BYTES))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative after a signal.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(os.read(self._status, _NUMBER_BYTES))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # reaped, and not yet reported
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_warm(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a module or script to its end; return its status and output.

    Raises:
        subprocess.TimeoutExpired: it was killed after `timeout` seconds.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = WarmProcess(arguments, stdout=out, stderr=errors, env=env, cwd=cwd)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, status, out.read(), errors.read())


def trussrc() -> Path:
    """Return the file with the accounts of warm processes; Truss reads its name when imported."""
    return Path(tempfile.gettempdir(), f"trussrc-{os.getpid()}")


class _Zygote:
    """The process to fork from; it ends with the connection."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            env = {**os.environ, "USER_TRUSSRC_PATH": str(trussrc())}
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()])

    def end(self) -> None:
        self.connection.close()
        self._process.wait()


@cache
def _zygote() -> _Zygote:
    return _Zygote()


def end_zygote() -> None:
    """End the process to fork from, if there is one."""
    if _zygote.cache_info().currsize:
        _zygote().end()


def _serve(connection: socket.socket) -> None:
    """Fork a process for each request; return in the forked ones, and when there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _PRELOADED:
        import_module(module)
    gc.freeze()  # a collection would copy the pages
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # by the file that becomes readable at the exit
    while True:
        for ready, _ in poller.poll():
            if ready in children:
                poller.unregister(ready)
                os.close(ready)
                pid, status = children.pop(ready)
                _report(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                continue
            message, files, *_ = socket.recv_fds(connection, _REQUEST_BYTES, 4)
            if not message:
                return
            *standard, status = files
            if (pid := os.fork()) == 0:
                connection.close()
                _become(json.loads(message), standard)
                return
            for number in standard:
                os.close(number)
            _report(status, pid)
            exited = os.pidfd_open(pid)
            children[exited] = pid, status
            poller.register(exited, select.POLLIN)


def _report(file: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(file, b"%*d" % (_NUMBER_BYTES, number))


def _become(request: dict[str, Any], standard: Sequence[int]) -> None:
    """Run the module of a request in this process."""
    for number, file in enumerate(standard):
        os.dup2(file, number)
    os.closerange(3, 64)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    name, *arguments = request["arguments"]
    sys.argv = [name, *arguments]
    if os.sep in name:
        runpy.run_path(name, run_name="__main__")
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def enter_network(name: str) -> None:
    """Move this thread, and what it starts, into a network namespace.

    Raises:
        OSError: the right is missing.
    """
    with Path(f"/run/netns/{name}").open() as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
