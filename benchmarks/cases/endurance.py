"""Growth of memory, threads and files over many short requests."""

from __future__ import annotations

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
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
    """Send requests in three parts and inspect the idle server after each."""
    requests = options.requests or _REQUESTS
    streams = options.streams[0] if options.streams else _STREAMS
    text = (
        f"{requests:,} requests of {_TOKENS} tokens over {streams} connections, from an engine "
        "that costs nothing. The server's processes are inspected when idle, after 10, 50 and "
        "100 % of the requests."
    )
    title = "Endurance: memory, threads and files over many requests"
    result = CaseResult("endurance", title, text, _COLUMNS).begin()
    bench = set_up(options, "endurance")
    bench.note_backend(result)
    done = 0
    rss_mib: dict[str, list[float]] = {}
    with serve(bench.config, bench.backend.folder) as truss:
        for share in _SHARES:
            part = round(requests * share) - done
            seen = run_load(predict_load(truss, _TOKENS, streams, requests=part))
            done += part
            for role, usage in sorted(usage_by_role(truss.pid).items()):
                rss_mib.setdefault(role, []).append(usage.rss_bytes / 2**20)
                result.add(
                    done=float(done),
                    process=role,
                    rss_mib=usage.rss_bytes / 2**20,
                    threads=float(usage.threads),
                    fds=float(usage.fds),
                    requests_s=part / seen.elapsed_s,
                    failed=float(seen.failed),
                )
    for role, (first, *_, last) in rss_mib.items():
        result.find(f"{role}: {last - first:+.1f} MiB between 10 % and 100 % of the requests.")
    return result
