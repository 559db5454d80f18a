"""The fake LLM API without Triton or HTTP: the baseline of the backend `llm_api`.

`python -m benchmarks.load.llm_api SITE ARGUMENTS PROMPTS` creates `tensorrt_llm.LLM`, prints
`ready`, and answers each line `STREAMS REQUESTS TOKENS` on standard input with one line of JSON: a
`LoadResult`. ARGUMENTS are those of `LLM` and PROMPTS lists of token ids, both as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.load.record import Record


async def run(
    llm: Any, sampling: Any, prompts: Iterator[list[int]], streams: int, requests: int
) -> Record:
    """Answer `requests` requests, `streams` of them concurrently."""
    record = Record()
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            start, arrivals, count = time.perf_counter(), [], 0
            async for output in llm.generate_async(next(prompts), sampling, streaming=True):
                arrivals.append(time.perf_counter())
                count = len(output.outputs[0].token_ids)
            record.add(start, arrivals, count)

    await asyncio.gather(*(client() for _ in range(streams)))
    return record


def main() -> None:
    site, arguments, prompts = sys.argv[1:]
    sys.path.insert(0, site)
    os.environ["TLLM_FAKE_SESSION"] = "process"  # MPI needs the environment of a server
    import tensorrt_llm

    llm = tensorrt_llm.LLM(**json.loads(arguments))
    cycle = itertools.cycle(json.loads(prompts))
    print("ready", flush=True)
    for line in sys.stdin:
        streams, requests, tokens = map(int, line.split())
        sampling = tensorrt_llm.SamplingParams(
            max_tokens=tokens, ignore_eos=True, end_id=0, pad_id=0, detokenize=False
        )
        record = asyncio.run(run(llm, sampling, cycle, streams, requests))
        print(json.dumps(asdict(record.result())), flush=True)
    llm.shutdown()


if __name__ == "__main__":
    main()
