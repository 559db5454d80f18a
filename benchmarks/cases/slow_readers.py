"""Clients that barely read, next to normal ones."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.cases.setup import Bench, predict_body, predict_load, set_up
from benchmarks.load.process import background_load
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, measure, paired_ratios, spreads
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_TOKENS = 128
_STREAMS = 32
_READERS = 1000
_SLOW_TOKENS = 2000
_SLOW_PROMPT = " responsibilities international characteristics representatives" * 2
_IDLE_CPU_S = 0.05
_IDLE_LIMIT_S = 120.0
_PHASES = _ALONE, _CONTENDED, _AFTER = "alone", "with slow ones", "after the slow ones"
_COLUMNS = [
    Column("phase", "phase"),
    Column("tok_s", "tok/s"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("failed", "failed"),
    Column("rss_mib", "RSS MiB"),
]


@dataclass(frozen=True, slots=True)
class _Round:
    """Figures of one server.

    Attributes:
        phases: figures of the normal readers, by phase.
        reader_kib: memory of a slow reader, by process.
        waited: `idle_s`, time from the slow readers' connections to the idle server.
        cut: slow connections that the server closed.
    """

    phases: dict[str, Sample]
    reader_kib: Sample
    waited: Sample
    cut: int


def run(options: Options) -> CaseResult:
    """Measure normal readers alone, next to slow ones, and after those have disconnected."""
    readers = options.readers or _READERS
    seconds = options.seconds or 10.0
    streams = options.streams[0] if options.streams else _STREAMS
    text = (
        f"{readers} clients ask for {_SLOW_TOKENS} tokens each; half of them read a byte a second "
        f"and half nothing, from a receive buffer of 4 KiB. Meanwhile {streams} clients read as "
        f"fast as they can, for {seconds:g} s a phase, from an engine that costs nothing. The "
        "second phase starts when the server is idle: all data for the slow ones is then in "
        "buffers. RSS is the peak of all processes of the server. Figures are medians over the "
        "rounds, each with a new server, ± half of the range."
    )
    result = CaseResult("slow-readers", "Slow readers next to normal ones", text, _COLUMNS).begin()
    bench = set_up(options, "slow-readers", max_batch_size=8192)
    bench.note_backend(result)
    rounds = [_measure(bench, streams, seconds, readers) for _ in range(options.rounds)]
    alone, contended, after = ([each.phases[name] for each in rounds] for name in _PHASES)
    for name, samples in zip(_PHASES, (alone, contended, after), strict=True):
        cells: dict[str, Cell] = {**spreads(samples)}
        result.add(phase=name, **cells)
    waited = spreads([each.waited for each in rounds])["idle_s"]
    result.find(
        f"The server is idle {waited.shown('.0f', ' s')} after the slow readers have connected."
    )
    ratio = paired_ratios(contended, alone)["tok_s"]
    result.find(f"Normal readers get {ratio.as_ratio} their throughput alone.")
    for role, kib in spreads([each.reader_kib for each in rounds]).items():
        result.find(f"A slow reader takes {kib.shown('.0f', ' KiB')} of {role}.")
    result.find(
        "Triton buffers all that an engine that costs nothing produces faster than it can be sent, "
        "and does not release the memory."
    )
    result.find(f"Slow connections that the server closed: {sum(each.cut for each in rounds)}.")
    return result


def _measure(bench: Bench, streams: int, seconds: float, readers: int) -> _Round:
    phases: dict[str, Sample] = {}
    with serve(bench.config, bench.backend.folder) as truss:
        normal = predict_load(truss, _TOKENS, streams, duration_s=seconds)
        body = predict_body(_SLOW_PROMPT, _SLOW_TOKENS)
        slow = LoadSpec("slow", truss.port, truss.path, (body,), streams=readers)
        measure(truss, normal)
        phases[_ALONE] = measure(truss, normal)
        before = usage_by_role(truss.pid)
        with background_load(slow) as ended:
            waited_s = _wait_until_idle(truss)
            holding = usage_by_role(truss.pid)
            phases[_CONTENDED] = measure(truss, normal)
        _wait_until_idle(truss)
        phases[_AFTER] = measure(truss, normal)
    reader_kib = {
        role: (usage.rss_bytes - before[role].rss_bytes) / 1024 / readers
        for role, usage in holding.items()
    }
    return _Round(phases, reader_kib, {"idle_s": waited_s}, ended[0].outcomes.get("cut", 0))


def _wait_until_idle(target: Target) -> float:
    """Wait until the server barely uses the CPU; return the seconds waited."""
    start = time.monotonic()
    used_s = total(usage_by_role(target.pid)).cpu_s
    while time.monotonic() - start < _IDLE_LIMIT_S:
        time.sleep(1.0)
        before_s, used_s = used_s, total(usage_by_role(target.pid)).cpu_s
        if used_s - before_s < _IDLE_CPU_S:
            break
    return time.monotonic() - start
