"""The check of the arguments of `LLM`."""

import os
from types import SimpleNamespace
from typing import ClassVar

from tensorrt_llm.fake.drafts import read_drafts
from tensorrt_llm.fake.otherwise import OTHERWISE
from tensorrt_llm.fake.versions import (
    ENGINE_ONLY,
    KV_CACHE_ARGUMENTS,
    LLM_ARGUMENTS,
    RELEASE,
    VERSION,
)

_DEFAULTS = {
    "skip_tokenizer_init": False,
    "max_batch_size": 2048,
    "max_num_tokens": 8192,
    "max_beam_width": 1,
    "enable_chunked_prefill": False,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "guided_decoding_backend": None,
    "lora_config": None,
    "enable_lora": False,
    "kv_cache_config": {},
    "stream_interval": 1,
    "sampler_type": "auto",
    "cuda_graph_config": {},
    "speculative_config": None,
}
_CPP_SAMPLER_REMOVED = (1, 3, 0, 25)  # pull request 18232, August 2026
_FROM_NONE = ("max_batch_size", "max_num_tokens", "max_beam_width")


class TorchLlmArgs:
    """The arguments of `LLM` by name, checked; nested ones become objects."""

    model_fields: ClassVar = {
        name: SimpleNamespace(default=_DEFAULTS.get(name), alias=None)
        for name in sorted(LLM_ARGUMENTS)
    }

    def __init__(self, **given):
        vars(self).update(check_arguments(given))
        cache = given.get("kv_cache_config")
        if "nested-mappings" not in OTHERWISE and isinstance(cache, dict):
            self.kv_cache_config = SimpleNamespace(**cache)


def check_arguments(given):
    """Return all arguments; raise ValueError before anything loads."""
    if wrong := sorted(given.keys() & ENGINE_ONLY):
        raise ValueError(f"{wrong} are only supported by the TensorRT backend.")
    unknown = sorted(given.keys() - LLM_ARGUMENTS)
    if unknown and "unknown-arguments" not in OTHERWISE:
        raise ValueError(f"TorchLlmArgs (TensorRT-LLM {VERSION}) got unexpected {unknown}")
    cache = given.get("kv_cache_config") or {}
    if unknown := sorted(cache.keys() - KV_CACHE_ARGUMENTS):
        raise ValueError(f"KvCacheConfig: Extra inputs are not permitted: {unknown}")
    if not 0 <= (cache.get("free_gpu_memory_fraction") or 0.9) <= 1:
        raise ValueError("kv_cache_config.free_gpu_memory_fraction must be between 0 and 1")
    if given.get("backend") not in (None, "pytorch", "_autodeploy"):
        raise ValueError(f"backend {given['backend']} was removed")
    if given.get("guided_decoding_backend") not in (None, "xgrammar", "llguidance"):
        raise ValueError("guided_decoding_backend must be xgrammar or llguidance")
    if RELEASE >= _CPP_SAMPLER_REMOVED and given.get("sampler_type") == "TRTLLMSampler":
        raise ValueError("TRTLLMSampler is no longer supported.")
    drafts = {"speculative_config": read_drafts(given.get("speculative_config"))}
    if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_RANK" in os.environ:
        raise RuntimeError("MPI_ERR_SPAWN: could not spawn processes inside an MPI job")
    given = {k: v for k, v in given.items() if v is not None or k not in _FROM_NONE}
    return {**_DEFAULTS, **given, **drafts}
