"""Truss's own inference server as a child process of a command, without Docker.

The Truss is laid out on disk as in its container, from Truss's build context.
"""

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

import yaml
from pydantic import ValidationError

from trtllm_truss import local_requests
from trtllm_truss.cli.common import signals_deferred
from trtllm_truss.configuration import CONFIDENTIAL, read_config
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
from trtllm_truss.processes.child import FOLDER_PREFIX, GuardedChild, lock_folder, sweep
from trtllm_truss.validation import broken_rule, dotted_path
from trtllm_workbench.cli import local_main
from trtllm_workbench.scaffold.documents import OWN_COMMAND, SLIM

_BYTECODE = "__pycache__"
_IGNORED = shutil.ignore_patterns(_BYTECODE, "*.egg-info")


def lay_out(truss: Path, config: Path | None, root: Path) -> None:
    """Fill the empty folder `root` with the `/app` and `/packages` of the image.

    `config` replaces the Truss's config.yaml, as with `truss push --config`. Truss would copy
    packages and data four times; they are placed directly, without the files that it ignores.

    Raises:
        SettingsError: the folder is not a Truss, or Truss rejects its config.yaml.
    """
    from truss.base.constants import SERVER_CODE_DIR, SHARED_SERVING_AND_TRAINING_CODE_DIR
    from truss.base.errors import Error as TrussLibraryError
    from truss.contexts.image_builder.serving_image_builder import ServingImageBuilderContext
    from truss.contexts.local_loader.docker_build_emulator import DockerBuildEmulator

    os.environ[SLIM] = "true"  # of `docker_server`: without a proxy and a supervisor of Truss's
    source, context = root / "truss", root / "context"
    placed = _write_source(truss, config, source)
    try:
        ServingImageBuilderContext.run(source).prepare_image_build_dir(context)
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors(include_url=False)))
        raise SettingsError(f"Truss rejects config.yaml: {problems}.") from None
    except (TrussLibraryError, ValueError, TypeError) as error:
        raise SettingsError(f"Truss rejects the configuration: {error}") from None
    DockerBuildEmulator(context / "Dockerfile", context).run(root)
    for folder, place in placed:
        _copy(folder, root / place)
    _copy_bytecode(SERVER_CODE_DIR, root / "app")
    _copy_bytecode(SHARED_SERVING_AND_TRAINING_CODE_DIR, root / "app/_truss_shared")
    shutil.rmtree(source)
    shutil.rmtree(context)


def _problem(finding: Mapping[str, Any]) -> str:
    """Format an item of `ValidationError.errors()` in one line, without the value of a secret."""
    name = dotted_path(finding["loc"])
    if finding["type"] == "missing":
        return f"{name} is missing"
    rule = str(finding["msg"]).removeprefix("Value error, ").rstrip(".")
    if name.startswith(CONFIDENTIAL):
        return f"{name}: {rule[:1].lower()}{rule[1:]}"
    return broken_rule({**finding, "msg": rule}, name)


def _copy(folder: Path, destination: Path) -> None:
    """Copy a folder with its compiled modules, and without what Truss ignores."""
    from pathspec import GitIgnoreSpec
    from truss.util.path import load_trussignore_patterns

    ignored = GitIgnoreSpec.from_lines(load_trussignore_patterns())

    def is_ignored(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        return ignored.match_file(f"{name}/" if path.is_dir() else name)

    def ignore(parent: str, names: list[str]) -> set[str]:
        return {name for name in names if is_ignored(Path(parent, name))}

    shutil.copytree(folder, destination, ignore=ignore, dirs_exist_ok=True)
    _copy_bytecode(folder, destination)


def _copy_bytecode(folder: Path, destination: Path) -> None:
    """Bring the modules compiled for this Python along; compiling them takes half a second.

    Python replaces such files and never writes into them, so links are safe, and are far cheaper.
    """
    for file in folder.rglob(f"{_BYTECODE}/*.{sys.implementation.cache_tag}.pyc"):
        target = destination / file.relative_to(folder)
        if target.parent.parent.is_dir():
            target.parent.mkdir(exist_ok=True)
            _link(file, target)


def _link(file: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of an earlier folder, perhaps linked
    try:
        target.hardlink_to(file)
    except OSError:  # another file system or user
        shutil.copy2(file, target)


def _write_source(truss: Path, config: Path | None, destination: Path) -> list[tuple[Path, str]]:
    """Write what Truss reads; return the folders to place, each with its place in the layout."""
    settings = read_config(truss, config)
    model = settings.get("model_module_dir", "model")
    if not (truss / model).is_dir():
        raise SettingsError(f"{truss} is not a Truss: it has no {model}/ folder.")
    shutil.copytree(truss / model, destination / model, ignore=_IGNORED)
    placed = []
    for name, place in (
        (settings.get("data_dir", "data"), "app/data"),
        (settings.get("bundled_packages_dir", "packages"), "packages"),
    ):
        if (truss / name).is_dir():
            (destination / name).mkdir(parents=True, exist_ok=True)
            placed.append((truss / name, place))
    base = truss if config is None else config.parent
    for name in settings.pop("external_package_dirs", None) or ():
        folder = base / str(name)
        if not folder.is_dir():
            raise SettingsError(f"external_package_dirs names {name!r}; {folder} is not a folder.")
        placed.append((folder, "packages"))
    if requirements := settings.get("requirements_file"):
        named = [folder / str(requirements) for folder in (base, truss)]
        file = next((each for each in named if each.is_file()), None)
        if file is None:
            raise SettingsError(f"requirements_file is {requirements!r}; that file does not exist.")
        shutil.copy(file, destination / requirements)
    (destination / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return placed


_TICK_S = 0.04
_ORPHAN_GRACE_S = 1.0
_CHATTER = (
    *("Started server process", "Waiting for application s", "Application s", "Uvicorn running on"),
    *("Shutting down", "Finished server process", "Using no-op tracing", "Executing model.load"),
    *("Loading truss model from file", "Completed model.load"),
)
"""Lines of Uvicorn and Truss about themselves; this command says when the model is ready."""

_PROBE = "/v1/models/model/schema"
_WILDCARDS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - and the address to connect to


class TrussServer:
    """One run of the server; a context manager that cleans up after itself.

    Args:
        truss: the Truss's folder.
        config: replaces its config.yaml.
        port: HTTP port.
        show: receives each line of the server's log in readable form; unescaped.
        host: an address of this machine, or its name.
        on_record: receives each record of the server's log, from the same thread.
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
        """The status that the server reports; None before its first."""
        return self._status.read() if self._status else None

    @property
    def pid(self) -> int:
        """The id of the process above all others of this run."""
        assert self._child is not None
        return self._child.pid

    @property
    def connect_host(self) -> str:
        """The address by which this machine reaches the server."""
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
        """Return once the Truss answers; each tick checks the child first.

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

        After `patience_s` everything is killed. A later call can only shorten it.
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
            if level in ("ERROR", "CRITICAL"):  # later ones follow from the first
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
        """Probe a route without side effects: others make a failing Truss kill itself.

        A server that reports its status is not disturbed during its start.
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
    """Return whether config.yaml names our own server.

    Raises:
        SettingsError: it names another one.
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

    Only a traceback adds lines: a message may hold the path of a request, and so anything.
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
