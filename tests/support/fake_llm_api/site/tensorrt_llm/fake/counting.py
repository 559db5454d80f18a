"""An engine that loads at once and repeats the prompt; select it with `COUNTING`.

An adapter adds its number to each token. Up to 1.2 it does so only to the first one, unless
`cuda_graph_config` is null: each further step replays a graph that was captured without adapters.
Sources in NVIDIA/TensorRT-LLM: docs/source/features/feature-combination-matrix.md of 1.2.1 (no),
`forward` of _torch/pyexecutor/model_engine.py, pull request 8279 (after 1.3.0rc0).
"""

import json
from pathlib import Path

from tensorrt_llm.fake.compute import Progress
from tensorrt_llm.fake.versions import RELEASE

_ADAPTERS_IN_GRAPHS = (1, 3, 0, 2)


class CountingCompute:
    def __init__(self, args):
        config = json.loads((Path(args["model"]) / "config.json").read_text())
        self.vocab_size = config["vocab_size"]
        self._replays_without_adapters = (
            RELEASE < _ADAPTERS_IN_GRAPHS and args["cuda_graph_config"] is not None
        )
        self._sequences = {}

    def add(self, key, prompt, params, max_tokens, seed, adapter=None):
        self._sequences[key] = [prompt, params, max_tokens, 0, adapter or 0]

    def cancel(self, key):
        self._sequences.pop(key, None)

    def step(self):
        return [self._advance(key) for key in [*self._sequences]]

    def rest(self): ...

    def _advance(self, key):
        sequence = self._sequences[key]
        prompt, params, max_tokens, count, adapter = sequence
        token = prompt[count % len(prompt)]
        if count == 0 or not self._replays_without_adapters:
            token = (token + adapter) % self.vocab_size
        sequence[3] += 1
        ends = not params.ignore_eos and token in {params.end_id, *(params.stop_token_ids or ())}
        done = ends or sequence[3] == max_tokens
        if done:
            del self._sequences[key]
        return Progress(key, [token], [-0.5], done)
