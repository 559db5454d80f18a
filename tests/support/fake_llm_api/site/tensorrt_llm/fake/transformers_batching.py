"""transformers' continuous batching as the fake's engine, on a GPU, with random weights.

The model has the shape of the checkpoint's `config.json`. Written against transformers 5.17, whose
generation loop is stepped here without its thread.
"""

import json
import os
import queue
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tensorrt_llm.fake.compute import Progress

_STATISTICS = "TLLM_FAKE_STATISTICS"
"""Names a file for the number of steps and the blocks of the KV cache; written by each step."""


def _free_after_step(model, config, args):
    """Return the bytes that the largest step leaves free, as TensorRT-LLM measures them.

    It runs a step of `max_num_tokens` before it allocates the KV cache, and counts the peak of
    PyTorch's memory and what others hold; see `KvCacheCreator` in TensorRT-LLM's `_util.py`.
    """
    length = min(args["max_num_tokens"], args["max_seq_len"] - 1)
    prompts = torch.zeros((-(-args["max_num_tokens"] // length), length), dtype=torch.long)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(prompts.cuda(), use_cache=False, logits_to_keep=1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return total - others - torch.cuda.max_memory_allocated()


def _bytes_per_token(config):
    head_size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size
    return numbers * torch.bfloat16.itemsize


class TransformersCompute:
    def __init__(self, args):
        config = AutoConfig.from_pretrained(args["model"])
        torch.manual_seed(0)  # a checkpoint's weights do not change from start to start
        with torch.device("cuda"):
            dtype = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
            self._model = AutoModelForCausalLM.from_config(config, **dtype)
        cache = args["kv_cache_config"] or {}
        block_size = cache.get("tokens_per_block", 32)
        free_bytes = _free_after_step(self._model, config, args)
        cache_bytes = free_bytes * cache.get("free_gpu_memory_fraction", 0.9)
        tokens = min(int(cache_bytes / _bytes_per_token(config)), cache.get("max_tokens") or 2**40)
        self._manager = self._model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1),
            ContinuousBatchingConfig(
                block_size=block_size,
                num_blocks=tokens // block_size,
                max_memory_percent=1.0,
                max_requests_per_batch=args["max_batch_size"],
                max_batch_tokens=args["max_num_tokens"],
                allow_block_sharing=False,
                use_async_batching=False,
                use_cuda_graph=False,
            ),
        )
        with torch.no_grad():
            self._processor = self._manager._create_batch_processor()
        self.vocab_size = config.vocab_size
        self._sent = {}
        self._steps = 0
        self._statistics = os.environ.get(_STATISTICS)
        self.rest()

    @property
    def kv_cache_tokens(self):
        cache = self._processor.cache
        return cache.num_blocks * cache.block_size

    def add(self, key, prompt, params, max_tokens, seed, adapter=None):
        self._sent[key] = 0
        ends = [] if params.ignore_eos else [params.end_id, *(params.stop_token_ids or ())]
        self._manager.add_request(
            prompt, json.dumps(key), max_tokens, streaming=True, eos_token_id=ends or -1
        )

    def cancel(self, key):
        if self._sent.pop(key, None) is not None:
            self._manager.cancel_request(json.dumps(key))

    @torch.no_grad()
    def step(self):
        self._steps += 1
        if self._processor.prepare_next_batch():
            self._processor._generation_step(self._model)
            self._processor.update_batch()
        self._write_statistics()
        return [*self._news()]

    @torch.no_grad()
    def rest(self):
        self._processor.prepare_next_batch()  # frees what cancelled sequences held
        self._write_statistics()

    def _news(self):
        results = self._manager.output_router.output_queue
        while True:
            try:
                result = results.get_nowait()
            except queue.Empty:
                return
            key = tuple(json.loads(result.request_id))
            if key in self._sent:
                tokens = result.generated_tokens[self._sent[key] :]
                self._sent[key] += len(tokens)
                done = result.is_finished()
                if done:
                    del self._sent[key]
                yield Progress(key, tokens, [0.0] * len(tokens), done)

    def _write_statistics(self):
        if self._statistics:
            file = Path(self._statistics)
            free = self._processor.cache.get_num_free_blocks()
            figures = {
                "at": time.monotonic(),
                "steps": self._steps,
                "free_blocks": free,
                "blocks": self._processor.cache.num_blocks,
                "kv_cache_tokens": self.kv_cache_tokens,
            }
            file.with_suffix(".new").write_text(json.dumps(figures))
            file.with_suffix(".new").replace(file)
