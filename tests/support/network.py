"""Hosts on one machine: network namespaces on one switch."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

import httpx
from tests.support.waiting import PATIENCE_S
from tests.support.warm_python import enter_network

Result = TypeVar("Result")

PORT = 8080
PROMPT = "One two three four five six seven eight nine ten"
_PREDICT = f"http://127.0.0.1:{PORT}/v1/models/model:predict"
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
        name: of the namespace.
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

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a thread whose sockets are this host's."""
        return self._threads.submit(function, *arguments).result(PATIENCE_S)

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

    def ranks(self) -> list[int]:
        """Return the servers of this host, the lowest rank first."""
        name = re.compile(r"^\S*/tritonserver ")
        return sorted(pid for pid, line in self.processes().items() if name.match(line))

    def is_healthy(self) -> bool:
        """Return the result of the platform's health check of the server here."""
        return self.call(_is_ready)

    def answers_right(self) -> bool:
        body = {"prompt": PROMPT, "max_tokens": 10}
        answer = self.call(lambda: httpx.post(_PREDICT, json=body, timeout=60))
        return answer.text == PROMPT

    def stream(self, max_tokens: int) -> tuple[threading.Event, Future[str]]:
        """Read one long stream; return what is set at its first bytes, and its end.

        The end is `whole`, `cut`, or the status.
        """
        started = threading.Event()
        return started, self._threads.submit(_read_stream, started, max_tokens)

    def sockets(self, *options: str) -> list[str]:
        """Return the lines of `ss -tnp` on this host."""
        command = ["ip", "netns", "exec", self.name, "ss", "-Htnp", *options]
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


class Network:
    """A switch and its hosts; one at a time in a process."""

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


def _read_stream(started: threading.Event, max_tokens: int) -> str:
    body = {"prompt": PROMPT, "max_tokens": max_tokens}
    try:
        with httpx.stream("POST", _PREDICT, json=body, timeout=60) as answer:
            for _ in answer.iter_raw():
                started.set()
            return "whole" if answer.status_code == 200 else str(answer.status_code)
    except httpx.TransportError:
        return "cut"


def _is_ready() -> bool:
    with closing(HTTPConnection("127.0.0.1", PORT, timeout=10)) as connection:
        try:
            connection.request("GET", "/v1/models/model")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
