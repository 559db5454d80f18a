"""Clients that barely read, next to normal ones."""

from __future__ import annotations

import time

from benchmarks.cases.setup import predict_body, predict_load, set_up
from benchmarks.load.process import background_load
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, measure
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_TOKENS = 128
_STREAMS = 32
_READERS = 1000
_SLOW_TOKENS = 4000
_SLOW_PROMPT = " responsibilities international characteristics representatives" * 2
_IDLE_CPU_S = 0.05
_IDLE_LIMIT_S = 120.0
_COLUMNS = [
    Column("phase", "phase"),
    Column("tok_s", "tok/s"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("failed", "failed"),
    Column("rss_mib", "RSS MiB"),
]


def run(options: Options) -> CaseResult:
    """Measure normal readers alone, next to slow ones, and after those have left."""
    readers = options.readers or _READERS
    seconds = options.seconds or 10.0
    streams = options.streams[0] if options.streams else _STREAMS
    text = (
        f"{readers} clients ask for {_SLOW_TOKENS} tokens each; half of them read a byte a second "
        f"and half nothing, from a receive buffer of 4 KiB. Meanwhile {streams} clients read as "
        f"fast as they can, for {seconds:g} s a phase, from an engine that costs nothing. The "
        "second phase starts when the server is idle: all data for the slow ones is then in "
        "buffers. RSS is the peak of all processes of the server."
    )
    result = CaseResult("slow-readers", "Slow readers next to normal ones", text, _COLUMNS).begin()
    bench = set_up(options, "slow-readers", max_batch_size=8192)
    bench.note_backend(result)
    with serve(bench.config, bench.backend.folder) as truss:
        normal = predict_load(truss, _TOKENS, streams, duration_s=seconds)
        body = predict_body(_SLOW_PROMPT, _SLOW_TOKENS)
        slow = LoadSpec("slow", truss.port, truss.path, (body,), streams=readers)
        measure(truss, normal)
        alone = measure(truss, normal)
        before = usage_by_role(truss.pid)
        _add(result, "alone", alone)
        with background_load(slow) as ended:
            waited_s = _wait_until_idle(truss)
            holding = usage_by_role(truss.pid)
            contended = measure(truss, normal)
        _add(result, f"with {readers} slow", contended)
        _wait_until_idle(truss)
        _add(result, "after the slow ones", measure(truss, normal))
    result.find(f"The server was idle {waited_s:.0f} s after the slow readers had connected.")
    result.find(
        f"Normal readers get {contended['tok_s'] / alone['tok_s']:.2f} × of their throughput alone."
    )
    for role in holding:
        kib = (holding[role].rss_bytes - before[role].rss_bytes) / 1024 / readers
        result.find(f"A slow reader takes {kib:.0f} KiB of {role}.")
    result.find(
        "Triton buffers all that an engine that costs nothing produces faster than it can be sent, "
        "and does not release the memory."
    )
    result.find(f"Slow connections that the server closed: {ended[0].outcomes.get('cut', 0)}.")
    return result


def _add(result: CaseResult, phase: str, sample: Sample) -> None:
    result.add(phase=phase, **sample)


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
