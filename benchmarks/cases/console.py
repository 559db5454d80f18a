"""Cost of an open console page to the server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.cases.setup import predict_body, predict_load, set_up
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE, ROOT
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.configuration import write_config
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role
from trtllm_truss.triton.server.ports import unused_ports

_STREAMS = 32
_TOKENS = 128
_IDLE_S = 8.0
_CLOSED, _OPEN = "closed", "open"
_COLUMNS = [
    Column("engine", "engine"),
    Column("page", "page"),
    Column("tok_s", "tok/s"),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("server_cpu_us", "server µs/tok", 1),
    Column("cpu_ms_s", "idle CPU ms/s", 1),
    Column("pulse_ms", "pulse max ms", 1),
    Column("failed", "failed"),
]
_TEXT = """\
`serve --console` with and without a page that asks for its pulse every second, in turns. The
browser's own work is left out: it runs where the user is. “zero cost” is an engine that makes
tokens as fast as Triton takes them, so that each microsecond shows. “idle CPU” is that of all
processes of the server without requests; “pulse” is how long the page waited for one."""


def run(options: Options) -> CaseResult:
    """Measure both engines with the page closed and open."""
    title = "Cost of an open console page"
    result = CaseResult("console", title, _TEXT, _COLUMNS).begin()
    streams = options.streams[0] if options.streams else _STREAMS
    bench = set_up(options, "console")
    bench.note_backend(result)
    (port,) = unused_ports(1)
    console = ("--console", str(port))
    with serve(bench.config, bench.backend.folder, arguments=console) as truss:
        load = partial(predict_load, truss, _TOKENS)
        measure(truss, load(2, requests=4))
        _compare(options, result, "none", port, partial(_idle, truss, options))
        spec = load(streams, duration_s=options.seconds or 4.0)
        _compare(options, result, "zero cost", port, partial(measure, truss, spec))
    runtime = {"max_batch_size": streams, "max_tokens_in_paged_kv_cache": 16384}
    config = write_config(options.work / "console-cpu.yaml", EXAMPLE, runtime=runtime)
    with serve(config, arguments=console) as truss:
        bodies = (predict_body("Here is what everybody should know about rivers:", 64),)
        cpu_load = partial(LoadSpec, "http", truss.port, truss.path, bodies)
        spec = cpu_load(streams=streams, requests=streams)
        measure(truss, cpu_load(streams=2, requests=2))
        _compare(options, result, "SmolLM2-135M", port, partial(measure, truss, spec))
    return result


def _compare(
    options: Options, result: CaseResult, engine: str, port: int, sample: Callable[[], Sample]
) -> None:
    paths: dict[str, Callable[[], Sample]] = {
        _CLOSED: sample,
        _OPEN: partial(_with_page, port, sample),
    }
    samples = in_turns(paths, options.rounds)
    for page, taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(engine=engine, page=page, **cells)
    if ratio := paired_ratios(samples[_OPEN], samples[_CLOSED]).get("tok_s"):
        result.find(f"With {engine} the open page leaves {ratio.as_ratio} of the tokens/s.")
    else:
        pairs = zip(samples[_OPEN], samples[_CLOSED], strict=True)
        extra = spreads(
            [{"ms": opened["cpu_ms_s"] - closed["cpu_ms_s"]} for opened, closed in pairs]
        )
        result.find(f"An open page takes {extra['ms'].shown('.1f', ' ms')} of CPU time a second.")


def _idle(truss: Target, options: Options) -> Sample:
    before_s, start = total(usage_by_role(truss.pid)).cpu_s, time.monotonic()
    time.sleep(options.seconds or _IDLE_S)
    used_s = total(usage_by_role(truss.pid)).cpu_s - before_s
    return {"cpu_ms_s": 1000 * used_s / (time.monotonic() - start)}


def _with_page(port: int, sample: Callable[[], Sample]) -> Sample:
    with _open_page(port) as waits_s:
        taken = sample()
    return {**taken, "pulse_ms": 1000 * waits_s[0]}


@contextmanager
def _open_page(port: int) -> Iterator[list[float]]:
    """Keep a page open during the block.

    Yields:
        A list that contains the longest wait for the figures after the block.
    """
    waits_s: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load.page", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield waits_s
        output, _ = process.communicate()
        waits_s.append(json.loads(output)[1])
    finally:
        process.kill()
        process.wait()
