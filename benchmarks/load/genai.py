"""OpenVINO GenAI in one process, without Triton or HTTP: the baseline of the CPU engine.

`python -m benchmarks.load.genai MODEL MAX_BATCH_SIZE KV_TOKENS PROMPT…` loads a model with the
properties of our backend, prints `ready`, and answers each line `STREAMS REQUESTS TOKENS`
on standard input with one line of JSON: a `LoadResult`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import openvino
import openvino_genai

from benchmarks.load.record import Record
from trtllm_backends.openvino_genai.engine import PREFILL_TOKENS, plugin_properties
from trtllm_truss.engines.cpu import KV_BLOCK_TOKENS
from trtllm_truss.text.tokenizer import load_tokenizer


class Loop:
    """A pipeline that is stepped while requests run."""

    def __init__(
        self, model: Path, max_batch_size: int, kv_tokens: int, prompts: list[str]
    ) -> None:
        tokenizer = load_tokenizer(model.parent)
        self._prompts = [tokenizer.encode(prompt) for prompt in prompts]
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = kv_tokens // KV_BLOCK_TOKENS
        scheduler.max_num_seqs = max_batch_size
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = max(PREFILL_TOKENS, max_batch_size)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", plugin_properties()
        )
        self._ids = 0

    def run(self, streams: int, requests: int, tokens: int) -> Record:
        """Answer `requests` requests, `streams` of them concurrently."""
        record = Record()
        left = requests
        running: list[_Answer] = []
        while left or running:
            while left and len(running) < streams:
                running.append(self._add(tokens))
                left -= 1
            self._pipeline.step()
            running = [answer for answer in running if not answer.collect(record)]
        return record

    def _add(self, tokens: int) -> _Answer:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        prompt = openvino.Tensor([self._prompts[self._ids % len(self._prompts)]])
        self._ids += 1
        return _Answer(self._pipeline.add_request(self._ids, prompt, config))


class _Answer:
    def __init__(self, handle: openvino_genai.GenerationHandle) -> None:
        self._handle = handle
        self._start_s = time.perf_counter()
        self._arrivals_s: list[float] = []
        self._tokens = 0

    def collect(self, record: Record) -> bool:
        """Collect the tokens of the last step; return whether the answer is complete."""
        if not self._handle.can_read():
            return False
        (output,) = self._handle.read().values()
        self._tokens += len(output.generated_ids)
        self._arrivals_s.append(time.perf_counter())
        if output.finish_reason == openvino_genai.GenerationFinishReason.NONE:
            return False
        record.add(self._start_s, self._arrivals_s, self._tokens)
        return True


def main() -> None:
    model, max_batch_size, kv_tokens, *prompts = sys.argv[1:]
    loop = Loop(Path(model), int(max_batch_size), int(kv_tokens), prompts)
    print("ready", flush=True)
    for line in sys.stdin:
        record = loop.run(*map(int, line.split()))
        print(json.dumps(asdict(record.result())), flush=True)


if __name__ == "__main__":
    main()
