"""Two replicas of the CPU example and a router of another project, as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.paths import EXAMPLE, ROOT
from benchmarks.servers.usage import descendants
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.scaffold.docker_server import own_server_section

MODEL = "smollm2-135m-cpu"
BATCH = 4
"""Requests that a replica runs; it queues none."""

HEALTH_S = 5
PATIENCE_S = 120.0
"""A request that takes longer counts as hung."""

_START_LIMIT_S = 240.0
_KEY = "fleet"
"""A key for the example of nginx; other routers pass it on to replicas that need none."""


@dataclass
class Outcome:
    """The outcome of a streamed request, as its client sees it.

    Attributes:
        kind: whole, error (visible), short (truncated, but ended as if whole) or hung.
        pieces: number of text chunks before the end.
        status: HTTP status; 0 without a response. With 200 the answer had started.
        first_s: time to the first chunk.
        total_s: time to the end.
        cached_tokens: cached prompt tokens, as reported by the usage.
    """

    kind: str = "error"
    pieces: int = 0
    status: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    cached_tokens: int = 0


def _events(answer: httpx.Response, until_s: float) -> Iterator[Any]:
    """Yield the JSON of each event, and "[DONE]".

    Raises:
        httpx.ReadTimeout: the time is over, even if keep-alives arrive.
    """
    for line in answer.iter_lines():
        if time.monotonic() > until_s:
            raise httpx.ReadTimeout("the answer does not end")
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def ask(
    url: str, prompt: str, tokens: int, on_piece: Callable[[], object] = lambda: None
) -> Outcome:
    """Stream one chat, and determine its outcome."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    outcome, begun_s, counted, reason, has_ended = Outcome(), time.monotonic(), 0, None, False
    try:
        with httpx.stream(
            *("POST", f"{url}/v1/chat/completions"),
            json=body,
            headers={"Authorization": f"Bearer {_KEY}"},
            timeout=PATIENCE_S,
        ) as r:
            outcome.status = r.status_code
            failed = r.status_code != 200
            for event in _events(r, begun_s + PATIENCE_S):
                has_ended |= event == "[DONE]"
                if isinstance(event, str):
                    continue
                failed |= "error" in event
                if usage := event.get("usage"):
                    counted = usage["completion_tokens"]
                    details = usage.get("prompt_tokens_details") or {}
                    outcome.cached_tokens = details.get("cached_tokens") or 0
                choices = event.get("choices", ())
                reason = next((each.get("finish_reason") for each in choices), None) or reason
                if any((each.get("delta") or {}).get("content") for each in choices):
                    outcome.first_s = outcome.first_s or time.monotonic() - begun_s
                    outcome.pieces += 1
                    on_piece()
            if not failed:
                is_whole = has_ended and reason == "length" and counted == tokens
                outcome.kind = "whole" if is_whole else "short"
    except httpx.TimeoutException:
        outcome.kind = "hung"
    except json.JSONDecodeError:  # half an event before a clean end
        outcome.kind = "short"
    except httpx.TransportError:
        pass
    outcome.total_s = time.monotonic() - begun_s
    return outcome


class Replica:
    """`trtllm-truss serve` with our own HTTP server, on a port that it keeps over starts."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self._config = folder / "config.yaml"
        self._log = folder / f"{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "trtllm_truss", "serve", "--truss", str(ROOT)]
        command += ["--config", str(self._config), "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        """Return once it responds.

        Raises:
            RuntimeError: it exited, or took too long.
        """
        assert self._process is not None
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not is_healthy(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"a replica did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.2)

    @property
    def _server_pid(self) -> int:
        assert self._process is not None
        for pid in descendants(self._process.pid):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if command[1:3] == [b"-m", b"trtllm_truss.cli.main"]:  # not its guard
                    return pid
        raise RuntimeError("the replica's server does not run")

    def running(self) -> int:
        """Return the number of requests in the engine."""
        return self._metric("trtllm_truss_requests_running")

    def finished(self) -> int:
        return self._metric("trtllm_truss_requests_finished_total")

    def _metric(self, name: str) -> int:
        page = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        values = re.findall(rf"^{name}(?:{{.*}})? (\S+)", page, re.MULTILINE)
        return int(sum(map(float, values)))

    def kill(self) -> None:
        """Kill the HTTP process, as the kernel does when memory is short; wait for the rest."""
        os.kill(self._server_pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Suspend the HTTP process during the block."""
        pid = self._server_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def drain(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def revive(self) -> None:
        assert self._process is not None
        self._process.wait(90)
        self.start()
        self.wait_until_ready()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def router_command(name: str, port: int, metrics: int, workers: Sequence[str]) -> list[str]:
    """Return the command of a router, named PROGRAM or PROGRAM:POLICY."""
    program, _, policy = name.partition(":")
    folder = ROOT / ".venv-fleet/bin"
    # The retries after one kill open smg's circuit breaker for a minute, in which the other replica
    # may die. vllm-router asks a dead replica until its own breaker opens.
    launch = ["launch", "--disable-circuit-breaker"] if program == "smg" else []
    # Both listen on every address by default, and check workers once a minute.
    return [
        *(str(folder / program), *launch, "--host", LOOPBACK, "--port", str(port)),
        *("--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics)),
        *("--policy", policy or "cache_aware", "--health-check-interval-secs", str(HEALTH_S)),
        *("--worker-urls", *workers),
    ]


def nginx() -> str | None:
    return shutil.which("nginx", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin")))


def write_nginx(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    """Write examples/docker/nginx.conf with the settings of docs/fleet.md; return the command."""
    servers = "".join(
        f"        server {url.removeprefix('http://')} max_fails=0;\n" for url in workers
    )
    changes = {
        "/tmp/": f"{folder}/",
        "        server truss:8081;\n": f"        least_conn;\n        zone truss 64k;\n{servers}",
        "proxy_next_upstream off;": "proxy_next_upstream error timeout http_429 http_503 "
        "non_idempotent; proxy_connect_timeout 2s;",
        "listen 8443 ssl;": f"listen {LOOPBACK}:{port};",
        "/etc/nginx/keys/*.conf": f"{folder}/keys",
        "/dev/stderr": f"{folder}/nginx.log",
        "/dev/stdout": "off",
        "worker_processes auto;": "worker_processes 1; daemon off;",
    }
    text = (ROOT / "examples/docker/nginx.conf").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, f"the example has no {old!r}"
        text = text.replace(old, new)
    text = re.sub(r" *ssl_.*\n", "", text).replace("off short", "off")
    (folder / "keys").write_text(f'"{_KEY}" fleet;\n', encoding="utf-8")
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    return [
        nginx() or "nginx",
        "-e",
        f"{folder}/nginx.log",
        "-p",
        str(folder),
        "-c",
        f"{folder}/nginx.conf",
    ]


@contextmanager
def router(name: str, folder: Path, replicas: Sequence[Replica], port: int = 0) -> Iterator[str]:
    """Run a router during the block; yield its URL once it answers."""
    free, metrics = unused_ports(2)
    port = port or free
    workers = [each.url for each in replicas]
    command = (
        write_nginx(folder, port, workers)
        if name == "nginx"
        else router_command(name, port, metrics, workers)
    )
    url = f"http://{LOOPBACK}:{port}"
    with (folder / "router.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 60
        while ask(url, "Hi", 1).kind != "whole":
            if process.poll() is not None or time.monotonic() > deadline_s:
                tail = (folder / "router.log").read_text()[-2000:]
                raise RuntimeError(f"{name} does not answer:\n{tail}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def two_replicas(folder: Path) -> Iterator[list[Replica]]:
    config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    config["external_package_dirs"] = [str(ROOT / "packages")]
    config["docker_server"] = own_server_section(None)
    config["model_metadata"]["runtime"]["max_batch_size"] = BATCH
    config["model_metadata"]["serving"] = {"queue_limit": 0}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with ExitStack() as stack:
        replicas = [Replica(folder, port) for port in unused_ports(2)]
        for each in replicas:
            stack.callback(each.end)
            each.start()
        for each in replicas:
            each.wait_until_ready()
        yield replicas
