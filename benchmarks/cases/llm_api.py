"""Compare the LLM API's path end to end with the same engine alone."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.cases.setup import predict_body
from benchmarks.load.process import run_load, stepped_engine
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.paths import ROOT, smollm2_file
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import in_turns, measure, measure_alone, paired_ratios, spreads
from benchmarks.servers.configuration import changed, write_config
from benchmarks.servers.truss import serve
from trtllm_truss.text.tokenizer import load_tokenizer

_RELEASE = "1.2.1"
_IMAGE = f"nvcr.io/nvidia/tensorrt-llm/release:{_RELEASE}"
_TOKENS = 128
_STREAMS = (1, 8, 32, 128)
_KV_CACHE_TOKENS = 32_768
_ENGINE, _API, _TRUSS = "engine alone", "LLM API alone", "trtllm-truss"
_FAKE = ROOT / "tests/fakes/tensorrt_llm"
_GPU_ENGINE = "tensorrt_llm.fake.transformers_batching:TransformersCompute"
_TOPICS = ("rivers", "glass", "music", "bread", "stars", "bridges", "maps", "rain")
_PROMPTS = [f"Here is what everybody should know about {topic}:" for topic in _TOPICS]
_EIGHT_LAYERS_OF_70B = {
    "torch_dtype": "float32",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
"""The shape of Llama-3.1-70B; the vocabulary is SmolLM2's.

The GPU sets the pace of these steps, as in TensorRT-LLM, which launches its kernels from CUDA
graphs. With the 32 layers of an 8B model in bfloat16, the CPU's kernel launches did, and a virtual
CPU takes up to three times as long for the same work from one moment to the next.
"""
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
A stand-in of TensorRT-LLM's LLM API, {_TOKENS} tokens an answer; its engine is {{engine}}.
“{_ENGINE}” steps that engine in one process, without text. “{_API}”, on a CPU only, calls
`LLM.generate_async`; its engine runs in a worker process. “{_TRUSS}” is `POST …:predict` with
server-sent events, through Triton and the backend `llm_api`. They take turns, and only the measured
one works. TensorRT-LLM itself was not measured."""


def run(options: Options) -> CaseResult:
    """Measure both at every number of streams."""
    on_gpu = shutil.which("nvidia-smi") is not None
    engine = (
        "transformers' continuous batching on random float32 weights of eight layers of\n"
        "Llama-3.1-70B's shape"
        if on_gpu
        else "OpenVINO GenAI with SmolLM2-135M on the CPU"
    )
    title = "LLM API end to end against its engine alone"
    text = _TEXT.replace("{engine}", engine)
    result = CaseResult("llm-api", title, text, _COLUMNS).begin()
    counts = options.streams or (_STREAMS if on_gpu else _STREAMS[:3])
    options.work.mkdir(parents=True, exist_ok=True)
    checkpoint = _write_checkpoint(options.work / "llm-api", on_gpu)
    os.environ |= import_module("tests.fakes.tensorrt_llm").fake_library(_RELEASE)
    if on_gpu:
        os.environ["TLLM_FAKE_COMPUTE"] = _GPU_ENGINE
    arguments = {
        "max_batch_size": max(counts),
        "max_num_tokens": 512,
        "max_seq_len": 2048,
        "kv_cache_config": {"max_tokens": _KV_CACHE_TOKENS},
    }
    config = write_config(
        options.work / "llm-api.yaml",
        engine_repository=str(checkpoint.resolve()),
        tokenizer_repository=None,
        runtime={"llm_args": arguments},
    )
    config = changed(config, "release", base_image={"image": _IMAGE})
    bodies = tuple(predict_body(prompt, _TOKENS) for prompt in _PROMPTS)
    everything = {"model": str(checkpoint), "max_beam_width": 1, **arguments}
    tokenizer = load_tokenizer(checkpoint)
    prompts = [tokenizer.encode(prompt) for prompt in _PROMPTS]
    words = [str(_FAKE / "site"), json.dumps(everything), json.dumps(prompts)]
    alone = {_ENGINE: "benchmarks.load.llm_compute"}
    if not on_gpu:  # each has the weights
        alone[_API] = "benchmarks.load.llm_api"
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(stepped_engine(module, words, _TOKENS))
            for name, module in alone.items()
        }
        truss = stack.enter_context(serve(config, _FAKE / "backends"))
        run_load(LoadSpec("http", truss.port, truss.path, bodies, streams=2, requests=2))
        for streams in counts:
            load = LoadSpec(
                "http", truss.port, truss.path, bodies, streams=streams, requests=streams
            )
            paths = {
                name: partial(measure_alone, engine, streams, streams)
                for name, engine in engines.items()
            }
            paths[_TRUSS] = partial(measure, truss, load)
            in_turns(paths, 1)  # warms both up
            samples = in_turns(paths, options.rounds)
            for name, rounds in samples.items():
                cells: dict[str, Cell] = {**spreads(rounds)}
                result.add(streams=float(streams), path=name, **cells)
            for baseline in engines:
                ratio = paired_ratios(samples[_TRUSS], samples[baseline])["tok_s"]
                result.find(
                    f"With {streams} at once, {_TRUSS} carries {ratio.as_ratio} {baseline}."
                )
    return result


def _write_checkpoint(folder: Path, on_gpu: bool) -> Path:
    fake = import_module("tests.fakes.tensorrt_llm")
    shutil.rmtree(folder, ignore_errors=True)
    fake.write_checkpoint(folder, smollm2_file(), shape=_EIGHT_LAYERS_OF_70B if on_gpu else None)
    return folder
