"""A killed rank, the restart, and the end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from trtllm_workbench.selftest.bench.bench import Bench
from trtllm_workbench.selftest.bench.calls import PREDICT
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held
from trtllm_workbench.selftest.bench.server import is_listening

UNHEALTHY_LIMIT_S = 2.0
_STREAMS = 2
_CUT_LIMIT_S = 10.0
_RESTART_MARGIN_S = 60.0
_END_LIMIT_S = 5.0
_TICK_S = 0.02
_ENGINE = "tritonserver"


def killed_rank(bench: Bench) -> Held:
    """Kill a rank under load: streams must end visibly, the health check must fail."""
    ranks = bench.server.named(_ENGINE)
    if not ranks:
        raise CannotRun(f"no process is named {_ENGINE}")
    streams = [_LongStream(bench) for _ in range(_STREAMS)]
    for stream in streams:
        stream.start()
    for stream in streams:
        if not stream.began.wait(_CUT_LIMIT_S):
            raise FellShort(f"a stream did not begin within {_CUT_LIMIT_S:.0f} s")
    killed_s = time.perf_counter()
    os.kill(ranks[-1], signal.SIGKILL)
    unhealthy_ms = _await(lambda: not bench.api.is_ready(), UNHEALTHY_LIMIT_S)
    for stream in streams:
        stream.join(_CUT_LIMIT_S)
    if any(stream.is_alive() for stream in streams):
        raise FellShort(f"a stream hangs {_CUT_LIMIT_S:.0f} s after rank {len(ranks) - 1} died")
    if any(stream.is_whole for stream in streams):
        raise FellShort("a stream ended like a whole answer although its engine had died")
    if unhealthy_ms is None:
        raise FellShort(
            f"the health check was still good {UNHEALTHY_LIMIT_S:.0f} s after a rank had died"
        )
    cut_ms = round(1000 * (max(stream.ended_s for stream in streams) - killed_s))
    return Held(
        f"rank {len(ranks) - 1} of {len(ranks)}: health false after {unhealthy_ms} ms, "
        f"{_STREAMS} streams visibly cut after {cut_ms} ms",
        {"unhealthy_ms": unhealthy_ms, "cut_ms": cut_ms},
    )


def restart(bench: Bench) -> Held:
    """Wait for the engine's restart; it must answer as before."""
    limit_s = bench.settings.serving.start_timeout_s + _RESTART_MARGIN_S
    waited_ms = _await(bench.api.is_ready, limit_s)
    if waited_ms is None:
        raise FellShort(f"the engine was not back after {limit_s:.0f} s")
    bench.server.remember()
    answer = bench.answers[0]
    if (text := bench.greedy(answer.prompt).text) != answer.text:
        raise FellShort(f"after the restart the greedy answer is {text!r}, before {answer.text!r}")
    if bench.api.metric("trtllm_truss_engine_restarts_total") < 1:
        raise CannotRun("the engine was not restarted; see the check before")
    return Held(
        f"back by itself after {waited_ms / 1000:.1f} s, with the same answer",
        {"restart_ms": waited_ms},
    )


def nothing_left(bench: Bench) -> Held:
    """End the server; processes, ports, shared memory and folders must be gone."""
    ports = [bench.api.port, int(bench.direct.address.rpartition(":")[2])]
    ports += [bench.http_port] if bench.http_port else []
    started = time.perf_counter()
    try:
        status = bench.server.end()
    except subprocess.TimeoutExpired:
        raise FellShort("`serve` still runs a minute after SIGTERM") from None
    seconds = time.perf_counter() - started
    if status != 0:
        raise FellShort(f"`serve` exited with status {status} after SIGTERM; it must be 0")
    _await(lambda: not bench.server.left_processes(), _END_LIMIT_S)
    left = [
        *(f"process {pid}" for pid in bench.server.left_processes()),
        *(f"port {port}" for port in ports if is_listening(port)),
        *bench.server.left_files(),
    ]
    if left:
        raise FellShort(f"`serve` left {', '.join(left)}")
    return Held(
        f"SIGTERM ended it after {seconds:.1f} s: no process, port, segment or folder",
        {"end_s": round(seconds, 2)},
    )


class _LongStream(threading.Thread):
    """Reads an answer as long as the context."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(daemon=True)
        self._bench = bench
        self.began = threading.Event()
        self.is_whole = False
        self.ended_s = 0.0

    def run(self) -> None:
        bench = self._bench
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            bench.api.stream(PREDICT, bench.long) as stream,
        ):
            for _ in stream.pieces():
                self.began.set()
            self.is_whole = stream.status == http.client.OK
        self.ended_s = time.perf_counter()


def _await(condition: Callable[[], bool], within_s: float) -> int | None:
    """Return the milliseconds until a condition holds; None if it does not in time."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > within_s:
            return None
        time.sleep(_TICK_S)
    return round(1000 * (time.perf_counter() - started))
