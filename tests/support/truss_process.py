"""`trtllm-truss serve` as a process, on free loopback ports."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from benchmarks.servers.usage import descendants
from tests.support.paths import EXAMPLE, ROOT
from tests.support.waiting import PATIENCE_S
from tests.support.warm_python import WarmProcess

from trtllm_truss.observability.status import STATUS_VARIABLE, State, StatusReader
from trtllm_truss.processes.process_guard import is_alive

START_LIMIT_S = 2 * PATIENCE_S
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1"}  # and its form on a dual-stack socket


_FIRST_PORT, _PORTS = 20_000, 12_000
_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """Return a port that other workers, sessions and outgoing connections do not take meanwhile.

    Each process starts at a different port. Linux uses ports from 32768 for connections and port 0.
    """
    while True:
        port = _FIRST_PORT + next(_ports) % _PORTS
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def write_greedy_example(folder: str | Path, **sections: Any) -> Path:
    """Write the example's configuration without sampling, so that equal requests agree.

    Args:
        folder: where to write.
        sections: further ones of config.yaml.
    """
    config = yaml.safe_load(EXAMPLE.read_text())
    del config["model_metadata"]["generation"]
    config["external_package_dirs"] = [str(ROOT / "packages")]
    file = Path(folder, "config.yaml")
    file.write_text(yaml.safe_dump({**config, **sections}))
    return file


class Served:
    """A `trtllm-truss serve`, its log and its descendants.

    Args:
        config: a configuration; by default the example's, without its sampling.
        environment: changes to the environment.
        arguments: further ones of `serve`.
        python: an interpreter to start; by default a warm process is forked.
    """

    def __init__(
        self,
        config: Path | None = None,
        environment: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
        python: str | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1/models/model:predict"
        self.lines: list[str] = []
        folder = tempfile.mkdtemp()
        config = config or write_greedy_example(folder)
        status = Path(folder, "status")
        self.status = StatusReader(status)
        self._clean_up = weakref.finalize(self, _clean_up, folder, self.status)
        command = [
            *("trtllm_truss", "serve", "--truss", str(ROOT)),
            *(
                "--config",
                str(config),
                "--port",
                str(self.port),
                *arguments,
            ),
        ]
        env = {**os.environ, STATUS_VARIABLE: str(status), **(environment or {})}
        self._log, log = os.pipe()
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self.process = (
            WarmProcess(command, stderr=log, env=env)
            if python is None
            else subprocess.Popen([python, "-m", *command], stderr=log, env=env, **silent)
        )
        os.close(log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with os.fdopen(self._log, encoding="utf-8") as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def wait_until_ready(self) -> Served:
        deadline = time.monotonic() + START_LIMIT_S
        while (status := self.status.read()) is None or status.state is not State.READY:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)
        pids = self.processes()
        self._shm_prefixes = [f"trtllm_truss_{pid}_" for pid in pids]
        folders = {Path(f"/proc/{pid}/cwd").readlink().parent for pid in pids}
        self.folders = folders - {ROOT.parent, Path("/")}
        return self

    def leftovers(self) -> list[str]:
        """Return remaining shared memory and folders of this server."""
        names = [path.name for path in Path("/dev/shm").iterdir()]
        segments = [name for name in names if name.startswith(tuple(self._shm_prefixes))]
        return segments + [str(folder) for folder in self.folders if folder.exists()]

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def post(self, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url, json=body, timeout=60, **options)

    def is_healthy(self) -> bool:
        """Return the result of the platform's health check."""
        return (
            httpx.get(f"http://127.0.0.1:{self.port}/v1/models/model", timeout=60).status_code
            == 200
        )

    def metric(self, name: str) -> int:
        """Return `trtllm_truss_NAME`."""
        page = httpx.get(
            f"http://127.0.0.1:{self.port}/metrics", follow_redirects=True, timeout=60
        ).text
        (value,) = re.findall(rf"^trtllm_truss_{name} (\d+)", page, re.MULTILINE)
        return int(value)

    def running(self) -> int:
        return self.metric("requests_running")

    def end(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        self.process.send_signal(number)
        status = self.wait(timeout_s)
        self._clean_up()
        return status

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end of the server and of its log."""
        status = self.process.wait(timeout_s)
        self._reader.join(PATIENCE_S)
        return status

    def processes(self) -> dict[int, str]:
        """Return names of the descendants by process id."""
        return descendants(self.process.pid)

    def cancelled(self) -> list[int]:
        """Return the numbers of tokens of cancelled requests, from the fake engine's log."""
        return [int(n) for n in re.findall(r"\] stopped id=\S+ after=(\d+)", self.log)]


def _clean_up(folder: str, status: StatusReader) -> None:
    status.close()
    shutil.rmtree(folder, ignore_errors=True)


def alive(pids: dict[int, str]) -> dict[int, str]:
    """Return the processes that still run, without zombies."""
    return {pid: name for pid, name in pids.items() if is_alive(pid)}


def listening_addresses(pid: int) -> list[tuple[str, int]]:
    """Return address and port of every TCP socket on which a process listens, like `ss -ltnp`."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(link.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                family = socket.AF_INET if table == "tcp" else socket.AF_INET6
                words = bytes.fromhex(address)
                raw = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.append((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def listening_hosts(server: Served) -> set[str]:
    """Return all listening addresses of a server and its descendants."""
    pids = [server.process.pid, *server.processes()]
    return {address for pid in pids for address, _ in listening_addresses(pid)}
