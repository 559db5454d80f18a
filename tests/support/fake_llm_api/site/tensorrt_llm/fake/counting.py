"""An engine that loads at once and repeats the prompt; select it with `COUNTING`."""

import json
from pathlib import Path

from tensorrt_llm.fake.compute import Progress


class CountingCompute:
    def __init__(self, args):
        config = json.loads((Path(args["model"]) / "config.json").read_text())
        self.vocab_size = config["vocab_size"]
        self._sequences = {}

    def add(self, key, prompt, params, max_tokens, seed):
        self._sequences[key] = [prompt, params, max_tokens, 0]

    def cancel(self, key):
        self._sequences.pop(key, None)

    def step(self):
        return [self._advance(key) for key in [*self._sequences]]

    def rest(self): ...

    def _advance(self, key):
        sequence = self._sequences[key]
        prompt, params, max_tokens, count = sequence
        token = prompt[count % len(prompt)]
        sequence[3] += 1
        ends = not params.ignore_eos and token in {params.end_id, *(params.stop_token_ids or ())}
        done = ends or sequence[3] == max_tokens
        if done:
            del self._sequences[key]
        return Progress(key, [token], [-0.5], done)
