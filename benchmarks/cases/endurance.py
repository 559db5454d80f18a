"""Growth of memory, threads and files over many short requests."""

from __future__ import annotations

from benchmarks.cases.setup import Bench, predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, spreads
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import usage_by_role

_TOKENS = 8
_STREAMS = 32
_REQUESTS = 10_000
_SHARES = (0.1, 0.5, 1.0)
_COLUMNS = [
    Column("done", "requests done"),
    Column("process", "process"),
    Column("rss_mib", "RSS MiB", 1),
    Column("threads", "threads"),
    Column("fds", "open files"),
    Column("requests_s", "requests/s"),
    Column("failed", "failed"),
]


def run(options: Options) -> CaseResult:
    """Send requests in three parts to a new server each round; inspect it idle after each part."""
    requests = options.requests or _REQUESTS
    streams = options.streams[0] if options.streams else _STREAMS
    text = (
        f"{requests:,} requests of {_TOKENS} tokens over {streams} connections, from an engine "
        "that costs nothing. The server's processes are inspected when idle, after 10, 50 and "
        "100 % of the requests. Figures are medians over the rounds, each with a new server, "
        "± half of the range."
    )
    title = "Endurance: memory, threads and files over many requests"
    result = CaseResult("endurance", title, text, _COLUMNS).begin()
    bench = set_up(options, "endurance")
    bench.note_backend(result)
    samples: dict[tuple[int, str], list[Sample]] = {}
    for _ in range(options.rounds):
        for part, sample in _measure(bench, requests, streams).items():
            samples.setdefault(part, []).append(sample)
    for (done, process), taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(done=float(done), process=process, **cells)
    first, *_, last = sorted({done for done, _ in samples})
    for process in sorted({process for _, process in samples}):
        pairs = zip(samples[last, process], samples[first, process], strict=True)
        growth = spreads([{"mib": end["rss_mib"] - begin["rss_mib"]} for end, begin in pairs])
        result.find(
            f"{process}: {growth['mib'].shown('+.1f', ' MiB')} between 10 % and 100 % of the "
            "requests."
        )
    return result


def _measure(bench: Bench, requests: int, streams: int) -> dict[tuple[int, str], Sample]:
    """Return what each process of a new server holds, by the requests done and its role."""
    found: dict[tuple[int, str], Sample] = {}
    done = 0
    with serve(bench.config, bench.backend.folder) as truss:
        for share in _SHARES:
            part = round(requests * share) - done
            seen = run_load(predict_load(truss, _TOKENS, streams, requests=part))
            done += part
            for role, usage in sorted(usage_by_role(truss.pid).items()):
                found[done, role] = {
                    "rss_mib": usage.rss_bytes / 2**20,
                    "threads": float(usage.threads),
                    "fds": float(usage.fds),
                    "requests_s": part / seen.elapsed_s,
                    "failed": float(seen.failed),
                }
    return found
