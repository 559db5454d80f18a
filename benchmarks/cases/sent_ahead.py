"""Compare requests sent ahead to a full engine with requests that wait in the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve

_BATCH = 32
_AHEAD = _BATCH // 8
_STEPS_MS = (5.0, 10.0, 20.0)
_TOKENS = (16, 64, 256)
_LEAVERS = 200
_LONGEST = 8000
_TIMEOUT_S = 60.0
_TICK_S = 0.01
_HERE, _SENT = "wait in the server", f"{_AHEAD} sent ahead"
_COLUMNS = [
    Column("step_ms", "step ms"),
    Column("tokens", "tokens"),
    Column("side", "waiting requests"),
    Column("request_s", "requests/s", 1),
    Column("tok_s", "tok/s"),
    Column("ttft_p50_ms", "TTFT p50 ms"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("failed", "failed"),
]
_TEXT = f"""\
The engine runs {_BATCH} requests at once, and {2 * _BATCH} clients ask one after another, so that
it is always full. “{_HERE}” is the server as it is. “{_SENT}” is the same server before an engine
whose `config.json` names {_BATCH + _AHEAD} requests: {_AHEAD} of them wait in the engine and begin
in the step after another has ended, not the one after that. The two take turns. Then {_LEAVERS}
clients leave while {_BATCH} answers run: what is counted are the prompts that the engine processes
for nobody. TensorRT-LLM's executor processes the prompt of a request that is cancelled in its
queue."""


def run(options: Options) -> CaseResult:
    """Measure a full engine on both sides, then have the waiting clients disconnect."""
    title = f"Requests sent ahead: an engine of {_BATCH} that is always full"
    result = CaseResult("sent-ahead", title, _TEXT, _COLUMNS).begin()
    options.work.mkdir(parents=True, exist_ok=True)
    for step_ms in _STEPS_MS[:1] if options.quick else _STEPS_MS:
        with ExitStack() as stack:
            sides = {
                name: _start(stack, options, step_ms, ahead)
                for name, ahead in ((_HERE, 0), (_SENT, _AHEAD))
            }
            for tokens in _TOKENS[:1] if options.quick else _TOKENS:
                _compare(result, options, step_ms, tokens, sides)
            if step_ms == _STEPS_MS[0]:
                for name, (target, prompts) in sides.items():
                    count = options.requests or _LEAVERS
                    wasted = _leave(target, prompts, count)
                    result.find(f"{name}: {wasted} of {count} prompts are processed for nobody.")
    return result


def _start(stack: ExitStack, options: Options, step_ms: float, ahead: int) -> tuple[Target, Path]:
    """Return a server, and the file that has a byte per prompt processed by its engine."""
    name = f"sent-ahead-{ahead}-{step_ms:g}"
    prompts = options.work.resolve() / f"{name}.prefilled"
    prompts.write_bytes(b"")
    engine = {"step_ms": step_ms, "runs": _BATCH, "prefilled": prompts}
    batch, patience_s = _BATCH + ahead, _TIMEOUT_S
    bench = set_up(options, name, max_batch_size=batch, engine=engine, queue_timeout_s=patience_s)
    target = stack.enter_context(serve(bench.config, bench.backend.folder))
    measure(target, predict_load(target, 2, 2, requests=4))
    return target, prompts


def _compare(
    result: CaseResult,
    options: Options,
    step_ms: float,
    tokens: int,
    sides: dict[str, tuple[Target, Path]],
) -> None:
    seconds = options.seconds or max(4.0, 6 * tokens * step_ms / 1000)
    paths: dict[str, Callable[[], Sample]] = {
        name: partial(measure, target, predict_load(target, tokens, 2 * _BATCH, duration_s=seconds))
        for name, (target, _) in sides.items()
    }
    samples = in_turns(paths, options.rounds)
    for name, rounds in samples.items():
        cells: dict[str, Cell] = {**spreads(rounds)}
        result.add(step_ms=step_ms, tokens=float(tokens), side=name, **cells)
    ratio = paired_ratios(samples[_HERE], samples[_SENT])
    result.find(
        f"{step_ms:g} ms a step, {tokens} tokens: without requests sent ahead "
        f"{ratio['tok_s'].as_ratio} their tok/s."
    )


def _leave(target: Target, prompts: Path, count: int) -> int:
    """Fill the engine, let further clients wait and disconnect; return the prompts of these."""
    before = prompts.stat().st_size
    running = [_ask(target) for _ in range(_BATCH)]
    for connection in running:
        connection.getresponse().read(1)
    waiting = [_ask(target) for _ in range(count)]
    _settle(target, _BATCH + count)
    _hang_up(waiting)
    _settle(target, _BATCH)
    _hang_up(running)
    _settle(target, 0)
    return prompts.stat().st_size - before - _BATCH


def _ask(target: Target) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT_S)
    fields = {"prompt": "Once upon a time", "max_tokens": _LONGEST, "ignore_eos": True}
    connection.request("POST", target.path, json.dumps(fields))
    return connection


def _hang_up(connections: Sequence[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _settle(target: Target, in_flight: int) -> None:
    """Wait until the server has this many requests, and each of its slots is in use or free."""
    deadline = time.monotonic() + _TIMEOUT_S
    while _gauge(target, "requests_in_flight") != in_flight or (
        in_flight == 0 and _gauge(target, "requests_running")
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server does not come to {in_flight} requests")
        time.sleep(_TICK_S)


def _gauge(target: Target, name: str) -> int:
    connection = HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT_S)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"trtllm_truss_{name} "))
    return int(float(value))
