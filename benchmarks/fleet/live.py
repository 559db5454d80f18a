"""Two replicas on this machine's CPU behind a router of another project.

    python -m benchmarks.fleet.live                       # serve until Ctrl-C
    python -m benchmarks.fleet.live --measure --docs docs
    python -m benchmarks.fleet.live --kills 10            # ten minutes

`make fleet` installs the routers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml
from tools.docs.tables import fill, table

from benchmarks.paths import EXAMPLE, ROOT
from benchmarks.servers.usage import descendants
from trtllm_truss.cli.common import unwinding
from trtllm_truss.triton.server.ports import LOOPBACK, unused_ports
from trtllm_workbench.scaffold.documents import OWN_SERVER

_MODEL = "smollm2-135m-cpu"
_BATCH = 4
_START_LIMIT_S = 240.0
_PATIENCE_S = 120.0
"""A request without an end within it hangs."""

_HEALTH_S = 5
_CONVERSATIONS = 8
_WORDS = 120
_CHAOS_CLIENTS = 4
_CHAOS_TOKENS = 16
_LONG_TOKENS = 120


@dataclass
class Outcome:
    """The end of a streamed request, as its client sees it.

    Attributes:
        kind: whole, error (visible), short (ended as if whole) or hung.
        pieces: pieces of text before the end.
        status: of HTTP; 0 without an answer.
        first_s: until the first piece.
        total_s: until the end.
        cached_tokens: of the prompt, as the answer's usage tells.
    """

    kind: str = "error"
    pieces: int = 0
    status: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    cached_tokens: int = 0


def ask(
    url: str, prompt: str, tokens: int, on_piece: Callable[[], object] = lambda: None
) -> Outcome:
    """Stream one chat, and decide how it ended."""
    body = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    outcome, begun_s, counted, has_ended = Outcome(), time.monotonic(), 0, False
    try:
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=_PATIENCE_S
        ) as r:
            outcome.status = r.status_code
            failed = r.status_code != 200
            for line in r.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    has_ended = True
                    continue
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                failed |= "error" in event
                if usage := event.get("usage"):
                    counted = usage["completion_tokens"]
                    details = usage.get("prompt_tokens_details") or {}
                    outcome.cached_tokens = details.get("cached_tokens") or 0
                if any(
                    (choice.get("delta") or {}).get("content")
                    for choice in event.get("choices", ())
                ):
                    outcome.first_s = outcome.first_s or time.monotonic() - begun_s
                    outcome.pieces += 1
                    on_piece()
            if not failed:
                outcome.kind = "whole" if has_ended and counted == tokens else "short"
    except httpx.TimeoutException:
        outcome.kind = "hung"
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
        """Return once it answers.

        Raises:
            RuntimeError: it ended, or took too long.
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

    def kill(self) -> None:
        """Kill the process of HTTP, as the kernel does when memory is short; wait for the rest."""
        os.kill(self._server_pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Stop the process of HTTP during the block, without ending it."""
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
    launch = ["launch"] if program == "smg" else []
    # Both listen on every address by default, and look at workers once a minute.
    return [
        *(str(folder / program), *launch, "--host", LOOPBACK, "--port", str(port)),
        *("--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics)),
        *("--policy", policy or "cache_aware", "--health-check-interval-secs", str(_HEALTH_S)),
        *("--worker-urls", *workers),
    ]


def write_nginx(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    """Write a configuration; return the command."""
    servers = "\n".join(
        f"    server {url.removeprefix('http://')} max_fails=1 fail_timeout={_HEALTH_S}s;"
        for url in workers
    )
    text = f"""daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream replicas {{ least_conn; zone replicas 64k;
{servers}
  }}
  server {{
    listen {LOOPBACK}:{port};
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host localhost; proxy_buffering off; proxy_read_timeout 3600s;
      proxy_connect_timeout 2s;
      proxy_next_upstream error timeout http_429 http_503 non_idempotent;
      proxy_next_upstream_tries 2;
    }}
  }}
}}
"""
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
    program = shutil.which("nginx", path=path) or "nginx"
    return [program, "-e", f"{folder}/nginx.log", "-p", str(folder), "-c", f"{folder}/nginx.conf"]


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
    config["docker_server"] = dict(OWN_SERVER)
    config["model_metadata"]["runtime"]["max_batch_size"] = _BATCH
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


def shown(outcomes: Sequence[Outcome]) -> str:
    """Return "3 whole, 1 error", with the visible errors before the first byte named apart."""
    names = Counter(
        f"{each.status or 'no'} status" if each.kind == "error" and not each.pieces else each.kind
        for each in outcomes
    )
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


class Streams:
    """Long streams in threads.

    Args:
        url: the router's.
        count: how many.
        prompt: its words.
    """

    def __init__(self, url: str, count: int, prompt: str = "Tell me a story") -> None:
        self._begun = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(count)
        self._count = count
        self._results: list[Future[Outcome]] = [
            self._pool.submit(self._run, url, f"{prompt} {number}") for number in range(count)
        ]

    def _run(self, url: str, prompt: str) -> Outcome:
        is_first = [True]

        def on_piece() -> None:
            if is_first.pop() if is_first else False:
                self._begun.release()

        return ask(url, prompt, _LONG_TOKENS, on_piece)

    def wait_until_begun(self) -> None:
        for _ in range(self._count):
            self._begun.acquire(timeout=_PATIENCE_S)

    def outcomes(self) -> list[Outcome]:
        found = [result.result() for result in self._results]
        self._pool.shutdown()
        return found


def prefixes(url: str) -> str:
    """Return how soon second turns answer, and how many find their first one."""
    firsts, cached = [], 0
    draw = random.Random(7)
    prompts = [
        " ".join(f"word{draw.randrange(10**6)}" for _ in range(_WORDS // 3))
        for _ in range(_CONVERSATIONS)
    ]
    for prompt in prompts:
        ask(url, prompt, 1)
    draw.shuffle(prompts)
    for prompt in prompts:
        outcome = ask(url, f"{prompt} And?", 1)
        firsts.append(outcome.first_s)
        cached += outcome.cached_tokens > 100
    return f"{median(firsts) * 1000:,.0f} ms, {cached} of {len(prompts)}"


def killed(url: str, replicas: Sequence[Replica], *, begun: bool) -> str:
    """Return the ends of four streams, one of whose replicas is killed, and of four new ones."""
    prompt = "Tell me a story" if begun else " ".join(f"word{n}" for n in range(_WORDS))
    streams = Streams(url, _BATCH, prompt)
    if begun:
        streams.wait_until_begun()
    else:
        time.sleep(0.3)
    replicas[0].kill()
    after = [ask(url, "Hi", 4) for _ in range(_BATCH)]
    found = f"{shown(streams.outcomes())}; then {shown(after)}"
    replicas[0].revive()
    time.sleep(2 * _HEALTH_S)
    return found


def drained(url: str, replicas: Sequence[Replica]) -> str:
    streams = Streams(url, _BATCH)
    streams.wait_until_begun()
    replicas[0].drain()
    after = [ask(url, "Hi", 4) for _ in range(_BATCH)]
    found = f"{shown(streams.outcomes())}; then {shown(after)}"
    replicas[0].revive()
    time.sleep(2 * _HEALTH_S)
    return found


def full(url: str, replicas: Sequence[Replica]) -> str:
    """Return the ends of requests while one replica refuses all, and while both do."""
    streams = Streams(replicas[0].url, _BATCH)
    streams.wait_until_begun()
    one = [ask(url, "Hi", 1) for _ in range(_BATCH)]
    more = Streams(replicas[1].url, _BATCH)
    more.wait_until_begun()
    both = [ask(url, "Hi", 1) for _ in range(2)]
    streams.outcomes()
    more.outcomes()
    time.sleep(1)
    after = [ask(url, "Hi", 1) for _ in range(2)]
    return f"{shown(one)}; both full: {shown(both)}; then {shown(after)}"


def hung(url: str, replicas: Sequence[Replica]) -> str:
    """Return the ends of requests while one replica is stopped, and how long the longest took."""
    with replicas[0].hung():
        outcomes = [ask(url, f"Hi {number}", 1) for number in range(_BATCH)]
    time.sleep(2 * _HEALTH_S)
    return f"{shown(outcomes)}, the slowest after {max(each.total_s for each in outcomes):.0f} s"


_COLUMNS = (
    "router",
    "second turn p50, prefixes found",
    "kill -9 after the first byte",
    "kill -9 before it",
    "SIGTERM",
    "full",
    "hung (SIGSTOP)",
)


def measure(names: Sequence[str], folder: Path, replicas: Sequence[Replica]) -> str:
    rows = []
    for name in names:
        with router(name, folder, replicas) as url:
            cells = [f"`{name}`"]
            steps: list[Callable[[], str]] = [
                lambda: prefixes(url),
                lambda: killed(url, replicas, begun=True),
                lambda: killed(url, replicas, begun=False),
                lambda: drained(url, replicas),
                lambda: full(url, replicas),
                lambda: hung(url, replicas),
            ]
            for step in steps:
                cells.append(step())
                print(f"{cells[0]}: {_COLUMNS[len(cells) - 1]}: {cells[-1]}", flush=True)
        rows.append(cells)
    return table(list(_COLUMNS), rows)


def random_kills(url: str, replicas: Sequence[Replica], minutes: float, seed: int) -> Counter[str]:
    """Send requests one after another from four clients while one replica after another dies."""
    draw, until_s = random.Random(seed), time.monotonic() + 60 * minutes
    found: Counter[str] = Counter()
    lock = threading.Lock()

    def client(number: int) -> None:
        sent = 0
        while time.monotonic() < until_s:
            outcome = ask(url, f"Hi {number} {sent}", _CHAOS_TOKENS)
            sent += 1
            kind = outcome.kind
            if kind == "error":
                begun = "after" if outcome.pieces else "before"
                kind = f"error {begun} the first byte ({outcome.status or 'no'} status)"
            with lock:
                found[kind] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(_CHAOS_CLIENTS)]
    for each in threads:
        each.start()
    kills = 0
    while time.monotonic() < until_s:
        time.sleep(draw.uniform(5, 20))
        victim = draw.choice(replicas)
        victim.kill()
        kills += 1
        victim.revive()
        time.sleep(2 * _HEALTH_S)  # the router must see it
    for each in threads:
        each.join()
    found["kills"] = kills
    return found


def main() -> int:
    """Run the command; return 1 if an answer was short, or hung."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.live", description=__doc__)
    parser.add_argument("--router", action="append", metavar="NAME[:POLICY]")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--measure", action="store_true", help="harm the replicas in every way")
    parser.add_argument("--kills", type=float, metavar="MINUTES", help="kill replicas at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write the table into fleet.md")
    options = parser.parse_args()
    names = options.router or ["smg:round_robin", "smg:cache_aware", "vllm-router", "nginx"]
    with ExitStack() as stack:
        stack.enter_context(unwinding())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        replicas = stack.enter_context(two_replicas(folder))
        if options.measure:
            text = measure(names, folder, replicas)
            print(text)
            if options.docs is not None:
                page = options.docs / "fleet.md"
                page.write_text(fill(page.read_text(), {"fleet-live": text}), encoding="utf-8")
            return 0
        name = options.router[0] if options.router else "smg:cache_aware"
        port = 0 if options.kills else options.port
        url = stack.enter_context(router(name, folder, replicas, port))
        if options.kills:
            found = random_kills(url, replicas, options.kills, options.seed)
            print(", ".join(f"{count} {kind}" for kind, count in sorted(found.items())))
            return int(bool(found["short"] or found["hung"]))
        print(f"two replicas, {replicas[0].url} and {replicas[1].url}, behind {name}: {url}")
        print(
            f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
            f'\'{{"model": "{_MODEL}", "stream": true, '
            '"messages": [{"role": "user", "content": "Hi"}]}\''
        )
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
