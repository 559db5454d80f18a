"""Run Truss's own inference server as a child process, without Docker."""

from __future__ import annotations

import errno
import http.client
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtllm_truss import local_requests
from trtllm_truss.cli.common import signals_deferred
from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError, StartupError
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.machine.runtime import BACKENDS_VARIABLE, EXECUTABLE_VARIABLE
from trtllm_truss.observability.status import (
    START_FAILED,
    STATUS_VARIABLE,
    State,
    Status,
    StatusReader,
)
from trtllm_truss.processes.begin import BEGIN_VARIABLE, begin_s
from trtllm_truss.processes.child import FOLDER_PREFIX, GuardedChild, lock_folder, sweep
from trtllm_workbench.cli import local_main
from trtllm_workbench.cli.layout import lay_out
from trtllm_workbench.scaffold.docker_server import OWN_COMMAND

_TICK_S = 0.04
_ORPHAN_GRACE_S = 1.0
_CHATTER = (
    *("Started server process", "Waiting for application s", "Application s", "Uvicorn running on"),
    *("Shutting down", "Finished server process", "Using no-op tracing", "Executing model.load"),
    *("Loading truss model from file", "Completed model.load"),
)
"""Lines of Uvicorn and Truss about themselves; this command reports when the model is ready."""

_PROBE = "/v1/models/model/schema"
_WILDCARDS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - and the address to connect to


class TrussServer:
    """One run of the server; a context manager that cleans up after itself.

    Args:
        truss: the Truss's folder.
        config: replaces its config.yaml.
        port: HTTP port.
        show: receives each line of the server's log in readable form, unescaped.
        host: an address of this machine, or its name.
        on_record: receives each record of the server's log, on the same thread.
    """

    def __init__(
        self,
        truss: Path,
        config: Path | None,
        port: int,
        show: Callable[[str], None],
        host: str = LOOPBACK,
        on_record: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        self.host = host
        self.port = port
        self._truss = truss
        self._config = config
        self._show = show
        self._on_record = on_record
        self._has_failed = False
        self._is_own = own_server(truss, config)
        self._status: StatusReader | None = None
        self._first_error: str | None = None
        self._run_id = f"serve_{os.getpid()}_{secrets.token_hex(8)}"
        self._root = Path(tempfile.gettempdir(), f"{FOLDER_PREFIX}{self._run_id}").absolute()
        self._laid_out = self._root / "laid_out"
        self._child: GuardedChild | None = None

    def __enter__(self) -> TrussServer:
        _require_free(self.host, self.port)
        sweep()
        lock = None
        try:  # the name is known before the folder exists: a signal may come at any moment
            self._root.mkdir(mode=0o700)
            lock = lock_folder(self._root)
            self._status = StatusReader(self._root / "status")
            if self._is_own:
                self._lay_out()
                self._start()
            else:  # it imports libraries until everything is laid out
                self._start()
                self._lay_out()
                self._laid_out.touch()
        except BaseException:
            if self._child is not None:
                self._child.end(0)
            self._close_status()
            shutil.rmtree(self._root, ignore_errors=True)
            raise
        finally:
            if lock is not None:
                os.close(lock)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0)
        self.wait()
        self._close_status()

    @property
    def status(self) -> Status | None:
        """The status reported by the server; None before its first."""
        return self._status.read() if self._status else None

    @property
    def pid(self) -> int:
        """The id of the process above all others of this run."""
        assert self._child is not None
        return self._child.pid

    @property
    def connect_host(self) -> str:
        """The address at which this machine reaches the server."""
        return _WILDCARDS.get(self.host, self.host)

    @property
    def root_url(self) -> str:
        """The URL without a path."""
        everywhere = self.host in _WILDCARDS
        host = "localhost" if everywhere or self.host == LOOPBACK else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the predict route."""
        return f"{self.root_url}/v1/models/model:predict"

    def wait_until_ready(self) -> None:
        """Return once the Truss responds; each tick first checks the child.

        Raises:
            StartupError: the server exited first; the message is the cause that it reported.
        """
        assert self._child is not None
        while self._child.wait(_TICK_S) is None:
            if self._is_ready():
                return
        raise StartupError(self._cause())

    def wait(self) -> int:
        """Wait until the server and all its children are gone; return its exit status."""
        assert self._child is not None
        status = self._child.wait()
        assert status is not None
        self._child.wait_for_output()
        shutil.rmtree(self._root, ignore_errors=True)
        sweep()  # the server and Triton's guard may have been killed at once
        return status

    def stop(self, patience_s: float) -> None:
        """Ask the server to drain and exit; return at once.

        After `patience_s` everything is killed. A later call can only shorten this time.
        """
        assert self._child is not None
        self._child.stop(patience_s)

    def _lay_out(self) -> None:
        try:
            lay_out(self._truss, self._config, self._root)
        except OSError as error:
            failures = error.args[0] if isinstance(error, shutil.Error) else []
            reason = failures[0][2] if failures else error  # copytree collects them
            raise StartupError(
                f"{self._truss} cannot be copied to {self._root}: {reason}; check permissions, "
                "links and free space."
            ) from error

    def _start(self) -> None:
        """Start the server's process."""
        temporary, packages, app = (self._root / name for name in ("tmp", "packages", "app"))
        for folder in (temporary, packages, app):  # removed with the rest
            folder.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "INFERENCE_SERVER_PORT": str(self.port),
            "PYTHONPATH": str(packages),
            "PYTHONUNBUFFERED": "1",
            # A second attempt would fail like the first and delay the error.
            "NUM_LOAD_RETRIES_TRUSS": "0",
            STATUS_VARIABLE: str(self._root / "status"),
            BEGIN_VARIABLE: str(begin_s(os.environ)),
        }
        environment.pop("DISABLE_JSON_LOGGING", None)
        for name in (BACKENDS_VARIABLE, EXECUTABLE_VARIABLE):  # the server runs in another folder
            if os.sep in environment.get(name, ""):
                environment[name] = str(Path(environment[name]).absolute())
        with signals_deferred():  # an exception in between would lose the child
            self._child = GuardedChild(
                self._command(app),
                environment,
                run_id=self._run_id,
                orphan_grace_s=_ORPHAN_GRACE_S,
                folder=self._root,
                cwd=app,
                on_line=self._take,
                name="truss",
            )

    def _take(self, raw: str) -> None:
        level, lines, record = _readable(raw)
        line = lines[0]
        self._on_record(record)
        self._has_failed |= bool(record.get(START_FAILED))
        is_chatter = level == "INFO" and str(record.get("message")).startswith(_CHATTER)
        if not self._has_failed and _PROBE not in line and not is_chatter:
            if level in ("ERROR", "CRITICAL"):  # later errors are consequences of the first
                self._first_error = self._first_error or line
            for each in lines:
                self._show(each)

    def _command(self, app: Path) -> list[str]:
        if self._is_own:
            options = ("--truss", str(app), "--host", self.host, "--port", str(self.port))
            return [sys.executable, "-m", "trtllm_truss.cli.main", "serve", *options]
        files = ("main.py", str(self._laid_out), local_requests.__file__)
        return [sys.executable, local_main.__file__, self.host, *files]

    def _is_ready(self) -> bool:
        """Probe a route without side effects; others make a failing Truss kill itself.

        A server that reports its status is not disturbed while it starts.
        """
        status = self.status
        if status is not None and status.state is not State.READY:
            return False
        connection = http.client.HTTPConnection(self.connect_host, self.port, timeout=5)
        try:
            connection.request("GET", _PROBE)
            return connection.getresponse().status != http.client.SERVICE_UNAVAILABLE
        except OSError:
            return False
        finally:
            connection.close()

    def _cause(self) -> str:
        exit_status, status = self.wait(), self.status
        if status is not None and status.state is State.FAILED:
            return status.reason
        return self._first_error or f"the server exited with status {exit_status}; see its log."

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.close()


def own_server(truss: Path, config: Path | None) -> bool:
    """Return True if config.yaml specifies our own server.

    Raises:
        SettingsError: it specifies another one.
    """
    section = read_config(truss, config).get("docker_server")
    if section is None:
        return False
    command = str((section or {}).get("start_command"))
    if OWN_COMMAND not in command:
        raise SettingsError(
            f"docker_server.start_command is {command!r}; `serve` runs Truss's server, or the one "
            f"of `python3 {OWN_COMMAND}`."
        )
    return True


def _require_free(host: str, port: int) -> None:
    try:
        found = local_requests.addresses(host, port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise SettingsError(f"--host is {host!r}; it must be an address or a name of this machine.")
    for family, address in found:
        try:
            socket.create_server(address, family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise SettingsError(
                    f"--host is {host!r}; {address[0]} is not an address of this machine."
                ) from None
            reason = "is in use by another program"
            if isinstance(error, PermissionError):
                reason = "needs privileges that this user lacks"
            raise SettingsError(
                f"port {port} {reason}; choose another one with --port (make serve PORT=…)."
            ) from None


def _readable(line: str) -> tuple[str, list[str], dict[str, Any]]:
    """Return level, lines and record of a line of Truss's JSON log; keep other lines unchanged.

    Only a traceback may add lines: a message may contain the path of a request, and so anything.
    """
    try:
        record = json.loads(line)
    except ValueError:
        return "INFO", [line], {}
    if not isinstance(record, dict) or "message" not in record:
        return "INFO", [line], {}
    level = str(record.get("levelname", "INFO"))
    text = f"{time.strftime('%H:%M:%S')} {record['message']}"
    if trace := record.get("exc_info"):
        return level, [text, *str(trace).split("\n")], record
    return level, [text], record
