"""The time from the start of the process to the first token, with a warm cache."""

from __future__ import annotations

import re
import time
from pathlib import Path

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, Spread, in_turns, spreads
from benchmarks.servers.triton import triton
from benchmarks.servers.truss import serve
from trtllm_truss.releases.contract import MODEL_NAME

_LOAD_S = 1
_TOTAL = "process start to first token"
_PARTS = {
    "server": "command, layout and import of Truss's server",
    "imports": "import of the model class",
    "engine": "engine: settings and inspection",
    "repository": "model repository",
    "triton": f"Triton: process, engine's load of {_LOAD_S} s, first token",
    "tokenizer": "tokenizer (beside Triton)",
    "rest": "admission, metrics, routes; readiness seen by serve",
    "request": "first request",
    "total": _TOTAL,
    "alone": "Triton alone: process start to ready",
}
_MARKS = {
    "loading": "Executing model.load()",
    "engine_begins": "] engine …",
    "engine": "] engine: ",
    "repository_begins": "] triton model repository …",
    "repository": "] triton model repository: ",
    "triton": "] triton: ",
    "ready": "ready: ",
}
"""Words of the log line at the end of a part."""
_TOKENIZER = re.compile(r"\] tokenizer: .*\(([\d.]+) s\)")
_COLUMNS = [Column("part", "part"), Column("ms", "ms")]


def run(options: Options) -> CaseResult:
    """Start the server repeatedly, and Triton alone beside it."""
    text = (
        f"`trtllm-truss serve` with an engine without weights, whose load takes {_LOAD_S} s: the "
        "rest is the time of our code, of Truss's server and of Triton's process. Each part is "
        "the time between two lines of the log. In a container the first part is shorter: the "
        "image holds the layout."
    )
    result = CaseResult("cold-start", "Start: from the process to the first token", text, _COLUMNS)
    result.begin()
    bench = set_up(options, "cold-start", load_s=_LOAD_S)
    bench.note_backend(result)
    samples = in_turns(
        {
            "serve": lambda: _serve(bench.config, bench.backend.folder),
            "alone": lambda: _triton_alone(bench.config, bench.backend.folder),
        },
        options.rounds,
    )
    together = [
        {**ours, **alone} for ours, alone in zip(samples["serve"], samples["alone"], strict=True)
    ]
    spread = spreads(together)
    for key, part in _PARTS.items():
        result.add(part=part, ms=spread[key])
    ours = spreads([{"ms": s["engine"] + s["repository"] + s["rest"]} for s in together])["ms"]
    result.find(
        f"Not beside Triton's start: {_shown(ours)} of this project's load(), "
        f"{_shown(spread['imports'])} of imports."
    )
    return result


def _shown(time_ms: Spread) -> str:
    return f"{time_ms.median:.0f} ms ({time_ms.low:.0f} to {time_ms.high:.0f})"


def _serve(config: Path, backends: Path) -> Sample:
    times = {"start": time.monotonic()}
    tokenizer_s: list[float] = []

    def read(line: str) -> None:
        now = time.monotonic()
        if found := _TOKENIZER.search(line):
            tokenizer_s.append(float(found[1]))
        for mark, words in _MARKS.items():
            if words in line:
                times.setdefault(mark, now)

    with serve(config, backends, on_line=read) as target:
        first = run_load(predict_load(target, 1, 1, requests=1)).ttft_ms["p50"]
    at = {mark: 1000 * (moment - times["start"]) for mark, moment in times.items()}
    return {
        "server": at["loading"],
        "imports": at["engine_begins"] - at["loading"],
        "engine": at["engine"] - at["engine_begins"],
        "tokenizer": 1000 * tokenizer_s[0],
        "repository": at["repository"] - at["repository_begins"],
        "triton": at["triton"] - at["repository"],
        "rest": at["ready"] - at["triton"],
        "request": first,
        "total": at["ready"] + first,
    }


def _triton_alone(config: Path, backends: Path) -> Sample:
    """Time Triton's process; the repository is rendered before."""
    with triton(config, backends, MODEL_NAME) as target:
        return {"alone": 1000 * target.started_in_s}
