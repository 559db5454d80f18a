"""An engine that loads at once and repeats the prompt; select it with `COUNTING`.

A bias chooses the token that it favours, a repetition penalty the token after the prompt's, and a
temperature draws from the prompt's by the seed.

An adapter adds its number to each token. Up to 1.2 it does so only to the first one, unless
`cuda_graph_config` is null: each further step replays a graph that was captured without adapters.
Sources in NVIDIA/TensorRT-LLM: docs/source/features/feature-combination-matrix.md of 1.2.1 (no),
`forward` of _torch/pyexecutor/model_engine.py, pull request 8279 (after 1.3.0rc0).
"""

import json
import random
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
        assert not params.use_beam_search, "no beams are counted"
        shift = adapter.lora_int_id if adapter is not None else 0
        self._sequences[key] = [prompt, params, max_tokens, 0, shift, seed]

    def cancel(self, key):
        self._sequences.pop(key, None)

    def step(self):
        return [self._advance(key) for key in [*self._sequences]]

    def rest(self): ...

    def _advance(self, key):
        sequence = self._sequences[key]
        prompt, params, max_tokens, count, shift, seed = sequence
        token = self._choose(prompt, params, count, seed)
        if count == 0 or not self._replays_without_adapters:
            token = (token + shift) % self.vocab_size
        sequence[3] += 1
        ends = not params.ignore_eos and token in {params.end_id, *(params.stop_token_ids or ())}
        done = ends or sequence[3] == max_tokens
        if done:
            del self._sequences[key]
        return Progress(key, [token], [-0.5], done)

    def _choose(self, prompt, params, count, seed):
        if params.embedding_bias is not None:
            return int(max(range(self.vocab_size), key=params.embedding_bias.__getitem__))
        if params.repetition_penalty:
            return (prompt[count % len(prompt)] + 1) % self.vocab_size
        if not params.is_greedy:
            return random.Random(seed + count).choice(prompt)
        return prompt[count % len(prompt)]
