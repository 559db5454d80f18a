"""The cost of one hostile body for another client."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from statistics import median

from benchmarks.load.hostile_bodies import CHAT, CORPUS, generated
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE, ROOT
from benchmarks.result import CaseResult, Column
from benchmarks.servers.configuration import write_config
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_GENERATED = 2000
_SEED = 11
_USUAL_S = 10.0
_CONTEXT_WORDS = 8000
_SETTLE_S = 10.0
_TAIL_S = 0.2
_COLUMNS = [
    Column("bodies", "bodies"),
    Column("count", "number"),
    Column("statuses", "statuses"),
    Column("usual_p50_ms", "usual p50 ms"),
    Column("usual_max_ms", "usual max ms"),
    Column("p50_ms", "wait p50 ms"),
    Column("max_ms", "wait max ms"),
    Column("worst", "worst body"),
    Column("kept_mib", "RSS kept MiB"),
]
_TEXT = """\
A neighbour asks `examples/smollm2-135m-cpu` for four tokens again and again while one hostile body
after another is sent. A wait is the whole time of one of the neighbour's answers that overlaps with
a body. “RSS kept” is what all processes of the server hold ten seconds after the last body, beyond
what they held before the first. Before the first, honest prompts fill the KV cache, which is
allocated as it is used, and one guide starts the process that checks guides."""


class _Neighbour:
    """Start and end times of the neighbour's answers, and the number of failed ones."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: list[tuple[float, float]] = []
        self.failed = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            begin, end, status = line.split()
            self._answers.append((float(begin), float(end)))
            self.failed += status != "200"

    def waits_ms(self, since: float, until: float) -> list[float]:
        """Wait for the last answer of a period; return the durations of all that overlap it."""
        while self._process.poll() is None and not (self._answers and self._answers[-1][1] > until):
            time.sleep(0.01)
        return [
            1000 * (end - begin) for begin, end in self._answers if end > since and begin < until
        ]


def run(options: Options) -> CaseResult:
    """Measure the corpus, then generated bodies."""
    title = "The wait of another client beside hostile bodies"
    result = CaseResult("hostile", title, _TEXT, _COLUMNS).begin()
    options.work.mkdir(parents=True, exist_ok=True)
    count = options.requests or _GENERATED
    corpus = [(body.name, body.route, body.make) for body in CORPUS]
    if options.quick:
        corpus = corpus[:5]
    config = write_config(options.work / "hostile.yaml", EXAMPLE)
    with serve(config) as truss, _neighbour(truss) as neighbour:
        _warm_up(truss)
        started = time.monotonic()
        time.sleep(options.seconds or _USUAL_S)
        usual = neighbour.waits_ms(started, time.monotonic())
        made = ((name, route, make()) for name, route, make in corpus)
        _measure(result, "corpus", made, truss, neighbour, usual)
        random = ((f"{route} {n}", route, body)
                  for n, (route, body) in enumerate(generated(count, _SEED)))  # fmt: skip
        _measure(result, "generated", random, truss, neighbour, usual)
        result.find(f"Of the neighbour's answers, {neighbour.failed} were not 200.")
    return result


def _warm_up(truss: Target) -> None:
    """Fill the KV cache and start the process that checks guides."""
    prompts = [{"prompt": f"{n} " * (_CONTEXT_WORDS // 2), "max_tokens": 4} for n in range(2)]
    guided = {
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "regex", "regex": "a{1,3}"},
    }
    for route, body in [*((truss.path, body) for body in prompts), (CHAT, guided)]:
        status = _post(truss, route, json.dumps(body).encode())
        if status != http.client.OK:
            raise RuntimeError(f"a warm-up request got status {status}")


def _measure(
    result: CaseResult,
    name: str,
    bodies: Iterable[tuple[str, str, bytes]],
    truss: Target,
    neighbour: _Neighbour,
    usual: list[float],
) -> None:
    before = total(usage_by_role(truss.pid)).rss_bytes
    waits: list[float] = []
    worst, worst_ms, count = "", 0.0, 0
    statuses: dict[int, int] = {}
    for body_name, route, body in bodies:
        started = time.monotonic()
        status = _post(truss, route, body)
        found = neighbour.waits_ms(started, time.monotonic() + _TAIL_S)
        waits += found
        statuses[status] = statuses.get(status, 0) + 1
        count += 1
        if max(found, default=0.0) > worst_ms:
            worst, worst_ms = body_name, max(found)
    time.sleep(_SETTLE_S)
    kept = total(usage_by_role(truss.pid)).rss_bytes - before
    result.add(
        bodies=name,
        count=float(count),
        statuses=" ".join(f"{status}:{times}" for status, times in sorted(statuses.items())),
        usual_p50_ms=median(usual),
        usual_max_ms=max(usual),
        p50_ms=median(waits),
        max_ms=worst_ms,
        worst=worst,
        kept_mib=kept / 2**20,
    )
    result.find(
        f"{name}: the longest wait is {max(0.0, worst_ms - max(usual)):.0f} ms beyond the longest "
        f"usual one; the server keeps {kept / 2**20:.0f} MiB."
    )


def _post(truss: Target, route: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", truss.port, timeout=600)
    try:
        with suppress(ConnectionError):  # a server may answer before it has read everything
            connection.request("POST", route, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@contextmanager
def _neighbour(truss: Target) -> Iterator[_Neighbour]:
    command = [sys.executable, "-m", "benchmarks.load.neighbour", str(truss.port), truss.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield _Neighbour(process)
        finally:
            process.kill()
