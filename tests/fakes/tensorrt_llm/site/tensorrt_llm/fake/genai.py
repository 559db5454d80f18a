"""OpenVINO GenAI as the fake's engine: real text on the CPU, as from the CPU engine."""

import json
from pathlib import Path

import numpy as np
import openvino_genai

from tensorrt_llm.fake.compute import Progress
from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine

_RUNNING = openvino_genai.GenerationFinishReason.NONE
_ENDED = openvino_genai.GenerationStatus.RUNNING


class GenaiCompute:
    def __init__(self, args):
        behaviour = json.loads((Path(args["model"]) / "fake.json").read_text())
        cache = args["kv_cache_config"] or {}
        settings = EngineSettings(
            model_folder=Path(behaviour["weights"]),
            max_batch_size=min(args["max_batch_size"], 64),
            max_beam_width=args["max_beam_width"],
            kv_cache_tokens=cache.get("max_tokens"),
            prefix_caching=cache.get("enable_block_reuse", True),
        )
        self._engine = GenAiEngine(settings)
        self._handles = {}
        self.vocab_size = self._engine.limits.vocab_size

    def add(self, key, prompt, params, max_tokens, seed, adapter=None):
        config = _config(params, max_tokens, seed)
        self._engine._accompany()
        self._handles[key] = self._engine._add(np.array(prompt, np.int64), config)

    def cancel(self, key):
        if handle := self._handles.pop(key, None):
            handle.cancel()

    def step(self):
        self._engine.step()
        return [news for key in [*self._handles] for news in self._collect(key)]

    def rest(self):
        self._engine.rest()

    def _collect(self, key):
        handle = self._handles[key]
        if not handle.can_read():
            if handle.get_status() != _ENDED:  # dropped: the KV cache is full
                del self._handles[key]
                yield Progress(key, [], None, True)
            return
        results = sorted(handle.read().values(), key=lambda result: result.score, reverse=True)
        for index, result in enumerate(results):
            done = result.finish_reason != _RUNNING
            if done:
                self._handles.pop(key, None)
            log_probs = list(result.generated_log_probs)
            yield Progress(key, list(result.generated_ids), log_probs, done, index)


def _config(params, max_tokens, seed):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    if params.ignore_eos:
        config.ignore_eos = True
    else:
        config.eos_token_id = params.end_id
        config.stop_token_ids = {params.end_id, *(params.stop_token_ids or ())}
        config.min_new_tokens = min(params.min_tokens or 1, max_tokens)
    if params.guided_decoding is not None:
        config.structured_output_config = _guide(params.guided_decoding)
        config.min_new_tokens = 0
    config.logprobs = int(params.wanted_log_probs is not None)
    if params.use_beam_search:
        config.num_beams = config.num_return_sequences = params.best_of
        config.length_penalty = params.length_penalty or 0.0
        return config
    config.repetition_penalty = params.repetition_penalty or 1.0
    config.presence_penalty = params.presence_penalty or 0.0
    config.frequency_penalty = params.frequency_penalty or 0.0
    if not params.is_greedy:
        config.do_sample = True
        config.temperature = 1.0 if params.temperature is None else params.temperature
        if params.top_k:
            config.top_k = params.top_k
        if params.top_p:
            config.top_p = params.top_p
        if params.min_p:
            config.min_p = params.min_p
        config.rng_seed = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return config


def _guide(params):
    config = openvino_genai.StructuredOutputConfig()
    for theirs, ours in (("json", "json_schema"), ("regex", "regex"), ("grammar", "grammar")):
        if text := getattr(params, theirs):
            setattr(config, ours, text)
    return config
