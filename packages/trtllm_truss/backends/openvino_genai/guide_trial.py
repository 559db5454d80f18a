"""A program that compiles guides, so that what goes wrong with one goes wrong here.

XGrammar compiles a guide in the pipeline's step, which a guide with a mistake makes fail for every
request in it. One that is nested deeply ends the process, and a small one can keep it busy for
hours. Here, the same library compiles a guide for the same vocabulary before the engine sees it,
with half of the stack that the engine's threads have and a limit on time and memory.

The program writes a line when it is ready. It then reads guides, one JSON array of language and
text a line, and answers each with a line: `null`, or the reason why it cannot be compiled. It ends
with its input, or by the signal of a limit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino import opset13

from trtllm_truss.backends.openvino_genai.decoding import structured_output
from trtllm_truss.backends.openvino_genai.guides import Guide
from trtllm_truss.backends.openvino_genai.model_files import find_model

CPU_LIMIT_S = 4.0
"""Seconds of one core for one guide. The engine then needs as long, while nothing else runs."""

MEMORY_LIMIT_BYTES = 2**30
"""What guides may take beyond what the program has when it is ready."""


def main() -> None:
    """Serve the engine folder that the first argument names."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may write to it
    pipeline = _load(Path(sys.argv[1]))
    if fault := _compile(pipeline, Guide("regex", "a")):
        sys.exit(fault)
    _limit_memory()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        reason = _compile(pipeline, Guide(*json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reason), file=answers, flush=True)


def _load(folder: Path) -> openvino_genai.LLMPipeline:
    """Load the tokenizer of an engine, with a model that finds all tokens equally likely."""
    tokenizer = openvino_genai.Tokenizer(find_model(folder).path)
    with tempfile.TemporaryDirectory() as model:
        openvino.save_model(_indifferent(len(tokenizer.get_vocab())), f"{model}/openvino_model.xml")
        return openvino_genai.LLMPipeline(model, tokenizer, "CPU", ATTENTION_BACKEND="SDPA")


def _indifferent(vocab_size: int) -> openvino.Model:
    """Make a model with the inputs that GenAI wants, logits [batch, tokens, vocab_size] all 0."""
    inputs = {
        "input_ids": opset13.parameter([-1, -1], np.int64),
        "attention_mask": opset13.parameter([-1, -1], np.int64),
        "position_ids": opset13.parameter([-1, -1], np.int64),
        "beam_idx": opset13.parameter([-1], np.int32),
    }
    size = opset13.constant([vocab_size], np.int64)
    shape = opset13.concat([opset13.shape_of(inputs["input_ids"]), size], 0)
    logits = opset13.broadcast(opset13.constant(0, np.float32), shape)
    for name, node in {**inputs, "logits": logits}.items():
        node.output(0).set_names({name})
    return openvino.Model([logits], [*inputs.values()], "indifferent")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _compile(pipeline: openvino_genai.LLMPipeline, guide: Guide) -> str | None:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = 1
    config.structured_output_config = structured_output(guide)
    try:
        pipeline.generate(openvino.Tensor(np.zeros((1, 1), np.int64)), config)
    except (RuntimeError, MemoryError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
