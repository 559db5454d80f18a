"""The time from the start of the process to the first token, with a warm cache."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, Spread, in_turns, spreads
from benchmarks.servers.triton import triton
from benchmarks.servers.truss import serve
from trtllm_truss.releases import MODEL_NAME

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
_LOADING = "Executing model.load()"
"""Part of the line that Truss's server logs before it loads the model."""
_COLUMNS = [Column("part", "part"), Column("ms", "ms")]


def run(options: Options) -> CaseResult:
    """Start the server repeatedly, alternating with Triton alone."""
    text = (
        f"`trtllm-truss serve` with an engine without weights, whose load takes {_LOAD_S} s: the "
        "rest is the time of our code, of Truss's server and of Triton's process. In a container "
        "the first part is shorter: the image holds the layout."
    )
    result = CaseResult("cold-start", "Start: from the process to the first token", text, _COLUMNS)
    result.begin()
    bench = set_up(options, "cold-start", engine={"load_s": _LOAD_S})
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
    started_s = time.time()
    loading_s: list[float] = []

    def read(line: str) -> None:
        if _LOADING in line:
            loading_s.append(time.time())

    with serve(config, backends, on_line=read) as target:
        ready_s = time.time()
        phases = {phase.name: phase for phase in target.status.phases}
        first = run_load(predict_load(target, 1, 1, requests=1)).ttft_ms["p50"]
    took_ms = {name: 1000 * (phase.took_s or 0.0) for name, phase in phases.items()}
    triton_ready_s = phases["triton"].at_s + (phases["triton"].took_s or 0.0)
    return {
        "server": 1000 * (loading_s[0] - started_s),
        "imports": 1000 * (phases["engine"].at_s - loading_s[0]),
        "engine": took_ms["engine"],
        "tokenizer": took_ms["tokenizer"],
        "repository": took_ms["triton model repository"],
        "triton": took_ms["triton"],
        "rest": 1000 * (ready_s - triton_ready_s),
        "request": first,
        "total": 1000 * (ready_s - started_s) + first,
    }


def _triton_alone(config: Path, backends: Path) -> Sample:
    """Time Triton's process; the repository was rendered before."""
    with triton(config, backends, MODEL_NAME) as target:
        return {"alone": 1000 * target.started_in_s}
