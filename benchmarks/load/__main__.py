"""Read one specification from standard input, run the load, write one result."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from benchmarks.load.record import Record
from benchmarks.load.spec import LoadSpec


async def _run(spec: LoadSpec) -> Record:
    if spec.kind == "grpc":
        from benchmarks.load.grpc import run_grpc as run  # takes half a second to import
    elif spec.kind == "slow":
        from benchmarks.load.slow import run_slow as run
    else:
        from benchmarks.load.loops import run_http as run
    record = Record()
    await run(spec, record)
    return record


def main() -> None:
    try:
        import uvloop
    except ImportError:
        pass
    else:
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    record = asyncio.run(_run(LoadSpec.from_json(sys.stdin.readline())))
    print(json.dumps(asdict(record.result())))


if __name__ == "__main__":
    main()
