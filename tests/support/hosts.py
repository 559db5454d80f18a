"""Hosts of a group on one machine: network namespaces with own hostnames, on one switch."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from tests.support.fake_tensorrtllm import FAKE_ENGINE
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S, settles
from tests.support.warm_python import WarmProcess, enter_network

from trtllm_truss.status import STATUS_VARIABLE, State, StatusReader

Result = TypeVar("Result")

KEY = "0123456789abcdef" * 4
PORT = 8080
PROMPT = "One two three four five six seven eight nine ten"
_URL = f"http://127.0.0.1:{PORT}"
_PREDICT = f"{_URL}/v1/models/model:predict"
_numbers = itertools.count()


def missing_right() -> str | None:
    """Return why this process cannot make network namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"truss-probe-{os.getpid()}"
    try:
        for action in ("add", "delete"):
            subprocess.run(["ip", "netns", action, name], check=True, capture_output=True)
        subprocess.run(["unshare", "--uts", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


class Host:
    """A network namespace with one address.

    Attributes:
        name: of the namespace, and the hostname of its processes.
        address: IPv4.
    """

    def __init__(self, network: Network, index: int) -> None:
        self.name = f"{network.name}-{index}"
        self.address = f"10.213.7.{index + 1}"
        self._switch = network.name
        self._port = f"p{index}"
        _ip("netns", "add", self.name)
        _ip("-n", self._switch, "link", "add", self._port, "type", "veth", "peer", "name", "eth0",
            "netns", self.name)  # fmt: skip
        _ip("-n", self._switch, "link", "set", self._port, "master", "switch", "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.name, "link", "set", device, "up")
        self._threads = ThreadPoolExecutor(16, initializer=lambda: enter_network(self.name))

    def close(self) -> None:
        self._threads.shutdown()
        _ip("netns", "delete", self.name)

    def cut(self) -> None:
        """Unplug the cable: packets vanish, and no connection is reset."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def restore(self) -> None:
        _ip("-n", self._switch, "link", "set", self._port, "up")

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a thread whose sockets are this host's."""
        return self._threads.submit(function, *arguments).result(PATIENCE_S)

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Any:
        return self._threads.submit(function, *arguments)

    def processes(self) -> dict[int, str]:
        """Return the processes of this host by id, with their command lines."""
        shown = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        ).stdout
        found = {}
        for pid in map(int, shown.split()):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line and pid != os.getpid():  # a zombie has no command line
                    found[pid] = line
        return found

    def jobs(self) -> dict[int, str]:
        """Return the processes of the MPI job: launcher, daemon, ranks, and what they started."""
        words = ("mpirun", "prte", "prun", "tritonserver", "triton_python_backend_stub")
        processes = self.processes().items()
        return {pid: line for pid, line in processes if any(word in line for word in words)}

    def ranks(self) -> list[int]:
        """Return the servers of this host, the lowest rank first."""
        name = re.compile(r"^\S*/tritonserver ")
        return sorted(pid for pid, line in self.processes().items() if name.match(line))

    def sockets(self, *options: str) -> list[str]:
        """Return the lines of `ss -tnp` on this host."""
        command = ["ip", "netns", "exec", self.name, "ss", "-Htnp", *options]
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


class Network:
    """A switch and its hosts; the first one is the leader. One at a time in a process."""

    def __init__(self, count: int) -> None:
        self.name = f"truss-{os.getpid()}-{next(_numbers)}"
        self.hosts: list[Host] = []
        with contextlib.ExitStack() as undo:
            _ip("netns", "add", self.name)
            undo.callback(_ip, "netns", "delete", self.name)
            _ip("-n", self.name, "link", "add", "switch", "type", "bridge")
            _ip("-n", self.name, "link", "set", "switch", "up")
            for index in range(count):
                host = Host(self, index)
                undo.callback(host.close)
                self.hosts.append(host)
            self._undo = undo.pop_all()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.hosts]


class Command:
    """A `trtllm-truss` command on a host, and its log."""

    def __init__(self, host: Host, *words: str, environment: dict[str, str]) -> None:
        self.host = host
        self.lines: list[str] = []
        self._log, log = os.pipe()
        self._folder = tempfile.TemporaryDirectory()
        status = Path(self._folder.name, "status")
        self._status = StatusReader(status)
        self.process = WarmProcess(
            ("trtllm_truss", *words),
            stderr=log,
            env={**os.environ, STATUS_VARIABLE: str(status), **environment},
            host=host.name,
        )
        os.close(log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def becomes_ready(self) -> bool:
        """Wait until `serve` is ready; return False if it ends first."""
        settles(lambda: self._is_ready() or self.process.poll() is not None)
        return self._is_ready()

    def _is_ready(self) -> bool:
        status = self._status.read()
        return status is not None and status.state is State.READY

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal the command and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit status."""
        status = self.process.wait(within_s)
        self._reader.join(PATIENCE_S)
        self._status.close()
        self._folder.cleanup()
        return status

    def _read(self) -> None:
        with os.fdopen(self._log, encoding="utf-8") as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))


class Group:
    """An engine on the hosts of a network: `serve` on the first, `join` on the others.

    Args:
        network: the hosts.
        config: the configuration of all hosts.
        ranks: of the engine.
        environment: of the commands.
    """

    def __init__(
        self, network: Network, config: Path, ranks: int, environment: dict[str, str]
    ) -> None:
        self.network = network
        self.config = config
        self._environment = environment
        self.leader, *self.others = network.hosts
        self.size, self.ranks = len(network.hosts), ranks // len(network.hosts)
        self.commands: dict[Host, Command] = {}

    def config_with(self, name: str, **metadata: object) -> Path:
        """Write a configuration with other settings, for one host."""
        content = yaml.safe_load(self.config.read_text())
        content["model_metadata"].update(metadata)
        file = self.config.with_name(name)
        file.write_text(yaml.safe_dump(content))
        return file

    def serve(self, key: str = KEY) -> Command:
        arguments = ("--config", str(self.config), "--port", str(PORT))
        return self._start(self.leader, "serve", arguments, key)

    def join(self, host: Host, key: str = KEY, config: Path | None = None) -> Command:
        return self._start(host, "join", ("--config", str(config or self.config)), key)

    def _start(self, host: Host, word: str, arguments: Sequence[str], key: str) -> Command:
        secret = {**self._environment, "TRUSS_SECRET_group_key": key}
        command = Command(host, word, "--truss", str(ROOT), *arguments, environment=secret)
        self.commands[host] = command
        return command

    def start(self) -> None:
        """Start every host; return once the leader is ready."""
        for host in self.others:
            self.join(host)
        assert self.serve().becomes_ready(), self.logs()

    def is_healthy(self) -> bool:
        """Return the result of the platform's health check."""
        return self.leader.call(_is_ready)

    def answers_right(self) -> bool:
        body = {"prompt": PROMPT, "max_tokens": 10}
        answer = self.leader.call(lambda: httpx.post(_PREDICT, json=body, timeout=60))
        return answer.text == PROMPT

    def stream(self, started: Callable[[], object], max_tokens: int) -> str:
        """Read one long stream in this thread; return `whole`, `cut`, or its status."""
        body = {"prompt": PROMPT, "max_tokens": max_tokens}
        try:
            with httpx.stream("POST", _PREDICT, json=body, timeout=60) as answer:
                for number, _ in enumerate(answer.iter_raw()):
                    if number == 0:
                        started()
                return "whole" if answer.status_code == 200 else str(answer.status_code)
        except httpx.TransportError:
            return "cut"

    def reads_secrets(self, pid: int, line: str) -> bool:
        """Return True for a command, and for the line of Truss's server or its guard."""
        commands = {command.process.pid for command in self.commands.values()}
        return pid in commands or "local_main.py" in line

    def logs(self) -> str:
        logs = (f"--- {host.name}\n{command.log}" for host, command in self.commands.items())
        return "\n".join(logs)[-6000:]

    def end(self) -> None:
        """End all commands; fail if a process is left on any host."""
        for command in reversed(self.commands.values()):
            if command.process.poll() is None:
                command.process.send_signal(signal.SIGTERM)
        for command in self.commands.values():
            command.wait()
        left = {host.name: found for host in self.network.hosts if (found := host.processes())}
        assert not left


@contextlib.contextmanager
def group_of(
    network: Network, config: Path, ranks: int, environment: dict[str, str] = FAKE_ENGINE
) -> Iterator[Group]:
    """Yield a group without a host; end all that run at the end."""
    group = Group(network, config, ranks, environment)
    try:
        yield group
    finally:
        group.end()


def _is_ready() -> bool:
    with closing(HTTPConnection("127.0.0.1", PORT, timeout=10)) as connection:
        try:
            connection.request("GET", "/v1/models/model")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
