"""The engine of the fake LLM API in one process, without Triton or HTTP: its baseline.

`python -m benchmarks.load.llm_compute SITE ARGUMENTS PROMPTS` loads the engine that
`TLLM_FAKE_COMPUTE` names, prints `ready`, and answers each line `STREAMS REQUESTS TOKENS` on
standard input with one line of JSON: a `LoadResult`. ARGUMENTS are those of `LLM` and PROMPTS lists
of token ids, both as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from benchmarks.load.record import Record

_PARAMETERS = SimpleNamespace(
    ignore_eos=True,
    end_id=0,
    stop_token_ids=None,
    guided_decoding=None,
    wanted_log_probs=None,
    use_beam_search=False,
    is_greedy=True,
    repetition_penalty=None,
    presence_penalty=None,
    frequency_penalty=None,
    min_tokens=None,
    best_of=1,
)


class Loop:
    """An engine, stepped while requests run."""

    def __init__(self, compute: Any, prompts: list[list[int]]) -> None:
        self._compute = compute
        self._prompts = itertools.cycle(prompts)
        self._keys = itertools.count()

    def run(self, streams: int, requests: int, tokens: int) -> Record:
        """Answer `requests` requests, `streams` of them concurrently."""
        record = Record()
        left = requests
        started: dict[Any, float] = {}
        arrivals: dict[Any, list[float]] = {}
        while left or started:
            while left and len(started) < streams:
                key = (next(self._keys), 0)
                started[key], arrivals[key] = time.perf_counter(), []
                self._compute.add(key, next(self._prompts), _PARAMETERS, tokens, 0)
                left -= 1
            for news in self._compute.step():
                arrivals[news.key].append(time.perf_counter())
                if news.done:
                    record.add(started.pop(news.key), arrivals.pop(news.key), tokens)
        self._compute.rest()
        return record


def main() -> None:
    site, arguments, prompts = sys.argv[1:]
    sys.path.insert(0, site)
    from tensorrt_llm.fake.compute import load_compute

    loop = Loop(load_compute(json.loads(arguments)), json.loads(prompts))
    print("ready", flush=True)
    for line in sys.stdin:
        record = loop.run(*map(int, line.split()))
        print(json.dumps(asdict(record.result())), flush=True)


if __name__ == "__main__":
    main()
