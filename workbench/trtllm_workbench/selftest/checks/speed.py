"""Tokens per second and time to the first byte, against the engine alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trtllm_workbench.selftest.bench.bench import PROMPTS, Bench, expect
from trtllm_workbench.selftest.bench.calls import EVENTS, PREDICT
from trtllm_workbench.selftest.bench.results import Held

_TOKENS, _QUICK_TOKENS = 64, 24
_ROUNDS, _QUICK_ROUNDS = 3, 2
_MOST_STREAMS = 16

Sample = tuple[float, float]
"""Tokens per second, and seconds to the first token."""


def speed(bench: Bench, streams: int) -> Held:
    """Measure the served path and the engine alone in turns."""
    rounds = _QUICK_ROUNDS if bench.quick else _ROUNDS
    tokens = min(_QUICK_TOKENS if bench.quick else _TOKENS, bench.longest_answer)
    _served(bench, streams, 2)
    pairs = [
        (_alone(bench, streams, tokens), _served(bench, streams, tokens)) for _ in range(rounds)
    ]
    ratios = [served[0] / alone[0] for alone, served in pairs]
    alone_s, served_s = ([pair[side][0] for pair in pairs] for side in (0, 1))
    first_alone, first_served = ([1000 * pair[side][1] for pair in pairs] for side in (0, 1))
    return Held(
        f"{_spread(served_s, 0)} tokens/s, first byte {_spread(first_served, 1)} ms; the engine "
        f"alone {_spread(alone_s, 0)} and {_spread(first_alone, 1)}: "
        f"{_spread(ratios, 2)} of its tokens/s",
        {
            "streams": streams,
            "tokens_per_answer": tokens,
            "rounds": rounds,
            "tokens_per_s": _figures(served_s),
            "tokens_per_s_alone": _figures(alone_s),
            "first_byte_ms": _figures(first_served),
            "first_token_ms_alone": _figures(first_alone),
            "ratio": _figures(ratios),
        },
    )


def most_streams(bench: Bench) -> int:
    """Return the streams of the second measurement: the engine's batch, within limits."""
    return min(bench.batch, 4 if bench.quick else _MOST_STREAMS)


def _alone(bench: Bench, streams: int, tokens: int) -> Sample:
    started = time.perf_counter()
    answers = bench.direct.generate_all([bench.prompt_ids] * streams, tokens)
    seconds = time.perf_counter() - started
    made = sum(len(answer.ids) for answer in answers)
    return made / seconds, statistics.median(answer.first_s for answer in answers)


def _served(bench: Bench, streams: int, tokens: int) -> Sample:
    body = {"prompt": PROMPTS[0], "max_tokens": tokens, "top_k": 1, "ignore_eos": True}
    started = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        replies = list(pool.map(lambda _: bench.api.post(PREDICT, body, EVENTS), range(streams)))
    seconds = time.perf_counter() - started
    made = sum(expect(reply).events()[-1]["usage"]["completion_tokens"] for reply in replies)
    return made / seconds, statistics.median(reply.first_s for reply in replies)


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _spread(values: Sequence[float], digits: int) -> str:
    """Return the median and half the range, such as ``120 ±4``."""
    half = (max(values) - min(values)) / 2
    return f"{statistics.median(values):.{digits}f} ±{half:.{digits}f}"
