"""Compare the cost of a token in `trtllm-truss dynamo` with Dynamo's own mocker."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases.setup import PROMPT, chunk_interval_ms, set_up
from benchmarks.load.process import run_load
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.paths import smollm2_file
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, figures, in_turns, paired_ratios, spreads
from benchmarks.servers.dynamo import MODEL, PYTHON, Fleet
from benchmarks.servers.usage import total, usage_by_role
from trtllm_truss.text.tokenizer import load_tokenizer

_STREAMS = 32
_TOKENS = 128
_STEP_MS = 6.3
"""The mocker's pace with 32 streams on two cores; it cannot run faster."""

_MOCKER = "Dynamo's mocker"
_PACED = {"step_ms": _STEP_MS}
_OURS: dict[str, dict[str, Any]] = {
    "ours, paced, every token": {"engine": _PACED, "chunk_interval_ms": 0},
    "ours, paced": {"engine": _PACED},
    "ours, paced, every 60 ms": {"engine": _PACED, "chunk_interval_ms": 60},
    "ours, an engine that costs nothing": {},
}
_CONTEXT_TOKENS = 8192
_COLUMNS = [
    Column("worker", "worker"),
    Column("tok_s", "tok/s"),
    Column("ttft_p50_ms", "TTFT p50 ms"),
    Column("server_cpu_us", "µs/tok", 1),
    Column("worker_cpu_us", "worker µs/tok", 1),
    Column("frontend_cpu_us", "frontend µs/tok", 1),
    Column("failed", "failed"),
]
_TEXT = f"""\
Streams of {_TOKENS} tokens on `/v1/completions` of Dynamo's frontend, each worker behind a frontend
of its own. “{_MOCKER}” runs with `--speedup-ratio 0`. “ours, paced” is `trtllm-truss dynamo` with
an engine of {_STEP_MS} ms a step, about the mocker's pace; it sends the tokens of a stream together
every {chunk_interval_ms():g} ms, the default of `serving.chunk_interval_ms`. The fleets take turns;
the client runs on the same cores. µs/tok is the CPU time of worker and frontend. Figures are
medians over the rounds, ± half of the range."""


def run(options: Options) -> CaseResult:
    """Measure fleets of one worker.

    Raises:
        RuntimeError: Dynamo is not installed.
    """
    if not PYTHON.exists():
        raise RuntimeError("Dynamo is not installed; run `make .venv-dynamo/.ready` first")
    result = CaseResult("dynamo", "Cost of a token behind Dynamo", _TEXT, _COLUMNS).begin()
    streams = options.streams[0] if options.streams else _STREAMS
    benches = {
        name: set_up(options, f"dynamo-{number}", **changes)
        for number, (name, changes) in enumerate(_OURS.items())
    }
    first, *_ = benches.values()
    first.note_backend(result)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-")))
        load_tokenizer(smollm2_file()).save(folder / "tokenizer", _CONTEXT_TOKENS)
        backends = {"TRITON_BACKEND_DIRECTORY": str(first.backend.folder)}
        fleets = {name: _fleet(stack, folder, backends) for name in (_MOCKER, *_OURS)}
        fleets[_MOCKER].add_mocker(folder / "tokenizer")
        for name, bench in benches.items():
            fleets[name].add_worker(bench.config)
        for fleet in fleets.values():
            fleet.wait_for(1)
            run_load(_load(fleet, streams, requests=2 * streams))
        seconds = options.seconds or 4.0
        paths = {
            name: partial(_sample, fleet, _load(fleet, streams, duration_s=seconds))
            for name, fleet in fleets.items()
        }
        samples = in_turns(paths, options.rounds)
    for name, taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(worker=name, **cells)
    for name in _OURS:
        ratio = paired_ratios(samples[name], samples[_MOCKER])["server_cpu_us"]
        result.find(f"A token of “{name}” takes {ratio.shown('.2f', ' ×')} the mocker's CPU time.")
    return result


def _fleet(stack: ExitStack, folder: Path, variables: dict[str, str]) -> Fleet:
    fleet = Fleet(Path(tempfile.mkdtemp(dir=folder)), **variables)
    stack.callback(fleet.close)
    return fleet


def _load(
    fleet: Fleet, streams: int, *, requests: int | None = None, duration_s: float = 0
) -> LoadSpec:
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return LoadSpec(
        "http",
        fleet.port,
        "/v1/completions",
        (json.dumps(body),),
        streams=streams,
        requests=requests,
        duration_s=duration_s,
    )


def _sample(fleet: Fleet, load: LoadSpec) -> Sample:
    before = _cpu_s(fleet)
    result = run_load(load)
    used_s = {name: after - before[name] for name, after in _cpu_s(fleet).items()}
    tokens = max(1, result.tokens)
    per_token = {f"{name}_cpu_us": 1e6 * cpu_s / tokens for name, cpu_s in used_s.items()}
    return {**figures(result), **per_token, "server_cpu_us": sum(per_token.values())}


def _cpu_s(fleet: Fleet) -> dict[str, float]:
    (worker,) = fleet.workers
    processes = {"worker": worker.pid, "frontend": fleet.frontend.pid}
    return {name: total(usage_by_role(pid)).cpu_s for name, pid in processes.items()}
