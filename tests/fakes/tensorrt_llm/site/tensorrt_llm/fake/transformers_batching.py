"""transformers' continuous batching as the fake's engine, on a GPU, or slowly on a CPU.

The model has the shape and the number format of the checkpoint's `config.json`, and the weights of
the GGUF file if that has this shape, else random ones. Written against transformers 5.17, whose
generation loop is stepped here without its thread. Generation is greedy.
"""

import json
import queue
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tensorrt_llm.fake.compute import Progress
from trtllm_truss.gguf import read_metadata

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_CPU_TOKENS = 8192


def _load_model(folder, config):
    dtype = {"dtype": config.dtype, "attn_implementation": "sdpa"}
    (weights,) = Path(json.loads((folder / "fake.json").read_text())["weights"]).glob("*.gguf")
    layers, hidden = (
        read_metadata(weights)[f"llama.{name}"] for name in ("block_count", "embedding_length")
    )
    if (layers, hidden) == (config.num_hidden_layers, config.hidden_size):
        model = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, **dtype
        )
        return model.to(_DEVICE)
    torch.manual_seed(0)  # a checkpoint's weights do not change from start to start
    with _DEVICE:
        return AutoModelForCausalLM.from_config(config, **dtype)


class _Adapters:
    """PEFT's LoRA, for each token of a batch.

    Formats: `save_pretrained` of peft 0.18 to 0.21, without options that change names or scale.
    """

    def __init__(self, model):
        self._model = model
        self._weights = {}
        self._hooked = set()
        self._of_requests = {}
        self._tokens = {}

    def add(self, request_id, adapter):
        """Answer a request with an adapter, which is read once."""
        self._of_requests[request_id] = adapter.lora_int_id
        if adapter.lora_int_id not in self._weights:
            self._read(adapter)

    def remove(self, request_id):
        self._of_requests.pop(request_id, None)

    def choose(self, batch):
        """Note the tokens of each adapter in the next step."""
        begin, tokens = 0, {}
        for each in batch if self._weights else ():
            number = self._of_requests.get(each.state.request_id)
            if number is not None:
                tokens.setdefault(number, []).extend(range(begin, begin + each.query_length))
            begin += each.query_length
        self._tokens = {
            number: torch.tensor(indices, device=_DEVICE) for number, indices in tokens.items()
        }

    def _read(self, adapter):
        folder = Path(adapter.lora_path)
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors", str(_DEVICE))
        self._weights[adapter.lora_int_id] = of_modules = {}
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            prefix = name.removesuffix(".lora_A.weight")
            module = prefix.removeprefix("base_model.model.")
            down, up = tensors[name], tensors[f"{prefix}.lora_B.weight"]
            scaled = up * (config["lora_alpha"] / config["r"])
            of_modules[module] = [each.to(self._model.dtype) for each in (down, scaled)]
            if module not in self._hooked:
                self._hooked.add(module)
                hook = partial(self._apply, module)
                self._model.get_submodule(module).register_forward_hook(hook)

    def _apply(self, module, _, inputs, output):
        for number, tokens in self._tokens.items():
            if weights := self._weights[number].get(module):
                down, up = weights
                output.index_add_(1, tokens, inputs[0][:, tokens] @ down.T @ up.T)


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
    return numbers * config.dtype.itemsize


class TransformersCompute:
    def __init__(self, args):
        config = AutoConfig.from_pretrained(args["model"])
        self._model = _load_model(Path(args["model"]), config)
        self._adapters = _Adapters(self._model)
        cache = args["kv_cache_config"] or {}
        block_size = cache.get("tokens_per_block", 32)
        tokens = _CPU_TOKENS
        if _DEVICE.type == "cuda":
            free_bytes = _free_after_step(self._model, config, args)
            cache_bytes = free_bytes * cache.get("free_gpu_memory_fraction", 0.9)
            tokens = int(cache_bytes / _bytes_per_token(config))
        tokens = min(tokens, cache.get("max_tokens") or tokens)
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
        self.rest()

    def add(self, key, prompt, params, max_tokens, seed, adapter=None):
        self._sent[key] = 0
        request_id = json.dumps(key)
        if adapter is not None:
            self._adapters.add(request_id, adapter)
        ends = [] if params.ignore_eos else [params.end_id, *(params.stop_token_ids or ())]
        self._manager.add_request(
            prompt, request_id, max_tokens, streaming=True, eos_token_id=ends or -1
        )

    def cancel(self, key):
        if self._sent.pop(key, None) is not None:
            self._adapters.remove(json.dumps(key))
            self._manager.cancel_request(json.dumps(key))

    @torch.no_grad()
    def step(self):
        if self._processor.prepare_next_batch():
            self._adapters.choose(self._processor.inputs_and_outputs.requests_in_batch)
            self._processor._generation_step(self._model)
            self._processor.update_batch()
        return [*self._news()]

    @torch.no_grad()
    def rest(self):
        self._processor.prepare_next_batch()  # frees what cancelled sequences held

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
                    self._adapters.remove(result.request_id)
                yield Progress(key, tokens, [0.0] * len(tokens), done)
