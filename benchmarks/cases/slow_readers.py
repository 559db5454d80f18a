"""Clients that hardly read, beside others that do."""

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
_CALM_CPU = 0.05
_CALM_LIMIT_S = 120.0
_COLUMNS = [
    Column("phase", "phase"),
    Column("tok_s", "tok/s"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("failed", "failed"),
    Column("rss_mib", "RSS MiB"),
]


def run(options: Options) -> CaseResult:
    """Measures normal readers alone, beside the slow ones, and when those have gone."""
    readers = options.readers or _READERS
    seconds = options.seconds or 10.0
    streams = options.streams[0] if options.streams else _STREAMS
    text = (
        f"{readers} clients ask for {_SLOW_TOKENS} tokens each; half of them read a byte a second "
        f"and half nothing, from a receive buffer of 4 KiB. Beside them {streams} clients read as "
        f"fast as they can, for {seconds:g} s a phase, from an engine that costs nothing. The "
        "second phase begins when the server has come to rest: all that the slow ones take is "
        "then in buffers. RSS is the peak of all processes of the server."
    )
    result = CaseResult("slow-readers", "Slow readers beside normal ones", text, _COLUMNS).begin()
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
            waited_s = _wait_until_calm(truss)
            holding = usage_by_role(truss.pid)
            beside = measure(truss, normal)
        _add(result, f"beside {readers} slow", beside)
        _wait_until_calm(truss)
        _add(result, "slow ones gone", measure(truss, normal))
    result.find(f"The server came to rest {waited_s:.0f} s after the slow readers' coming.")
    result.find(f"Normal readers get {beside['tok_s'] / alone['tok_s']:.2f} × what they get alone.")
    for role in holding:
        kib = (holding[role].rss_bytes - before[role].rss_bytes) / 1024 / readers
        result.find(f"A slow reader takes {kib:.0f} KiB of {role}.")
    result.find(
        "Triton keeps what an engine that costs nothing makes faster than it can be sent, whoever "
        "reads it, and does not give the memory back."
    )
    result.find(f"Slow connections that the server had ended: {ended[0].outcomes.get('cut', 0)}.")
    return result


def _add(result: CaseResult, phase: str, sample: Sample) -> None:
    result.add(phase=phase, **sample)


def _wait_until_calm(target: Target) -> float:
    """Waits until the server hardly uses the CPU; gives the seconds that it took."""
    begun = time.monotonic()
    used_s = total(usage_by_role(target.pid)).cpu_s
    while time.monotonic() - begun < _CALM_LIMIT_S:
        time.sleep(1.0)
        before_s, used_s = used_s, total(usage_by_role(target.pid)).cpu_s
        if used_s - before_s < _CALM_CPU:
            break
    return time.monotonic() - begun
