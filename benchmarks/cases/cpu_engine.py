"""Compare the CPU engine end to end with OpenVINO GenAI alone."""

from __future__ import annotations

from functools import partial

from benchmarks.cases.setup import predict_body
from benchmarks.load.process import run_load, stepped_engine
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE, smollm2_file
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, figures, in_turns, measure_alone, paired_ratios, spreads
from benchmarks.servers.configuration import write_config
from benchmarks.servers.truss import serve

_TOKENS = 64
_STREAMS = (1, 8, 32)
_REQUESTS_PER_STREAM = 2
_TURNS_PER_ROUND = 3
"""Neighbours change a virtual core's speed within seconds, so many short turns compare best."""
_KV_TOKENS = 16384
_ALONE, _TRUSS = "openvino-genai alone", "trtllm-truss"
_TOPICS = ("rivers", "glass", "music", "bread", "stars", "bridges", "maps", "rain")
_PROMPTS = tuple(f"Here is what everybody should know about {topic}:" for topic in _TOPICS)
_COLUMNS = [
    Column("streams", "streams"),
    Column("path", "path"),
    Column("tok_s", "tok/s"),
    Column("ttft_p50_ms", "TTFT p50 ms"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("gap_p50_ms", "gap p50 ms", 1),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("failed", "failed"),
]
_TEXT = f"""\
SmolLM2-135M on the CPU, {_TOKENS} tokens an answer. “{_ALONE}” steps a pipeline in one process,
with the model, the properties and the KV cache that the server's engine has, and makes no text;
“{_TRUSS}” is `POST …:predict` with server-sent events on `examples/smollm2-135m-cpu`, its client
on the same cores. The two take turns of a few seconds, and neither works while the other is
measured. The server's engine has its weights in huge pages, which OpenVINO does not ask for. Ratios
are medians over the turns, with their range."""


def run(options: Options) -> CaseResult:
    """Measure both at every number of streams."""
    title = "CPU engine end to end against OpenVINO GenAI alone"
    result = CaseResult("cpu-engine", title, _TEXT, _COLUMNS).begin()
    counts = options.streams or _STREAMS
    options.work.mkdir(parents=True, exist_ok=True)
    runtime = {"max_batch_size": max(counts), "max_tokens_in_paged_kv_cache": _KV_TOKENS}
    config = write_config(options.work / "cpu-engine.yaml", EXAMPLE, runtime=runtime)
    bodies = tuple(predict_body(prompt, _TOKENS) for prompt in _PROMPTS)
    turns = 1 if options.quick else _TURNS_PER_ROUND * options.rounds
    arguments = [str(smollm2_file()), str(max(counts)), str(_KV_TOKENS), *_PROMPTS]
    stepped = stepped_engine("benchmarks.load.genai", arguments, _TOKENS)
    with stepped as alone, serve(config) as truss:
        alone(2, 2)
        run_load(LoadSpec("http", truss.port, truss.path, bodies, streams=2, requests=2))
        for streams in counts:
            requests = streams * (1 if options.quick else _REQUESTS_PER_STREAM)
            load = LoadSpec(
                "http", truss.port, truss.path, bodies, streams=streams, requests=requests
            )
            paths = {
                _ALONE: partial(measure_alone, alone, streams, requests),
                _TRUSS: partial(_measure, load),
            }
            samples = in_turns(paths, turns)
            for name, taken in samples.items():
                cells: dict[str, Cell] = {**spreads(taken)}
                result.add(streams=float(streams), path=name, **cells)
            ratio = paired_ratios(samples[_TRUSS], samples[_ALONE])["tok_s"]
            result.find(f"With {streams} at once, {_TRUSS} carries {ratio.as_ratio} {_ALONE}.")
    return result


def _measure(load: LoadSpec) -> Sample:
    """Measure without sampling the server's processes, which would burden only this side."""
    return figures(run_load(load))
