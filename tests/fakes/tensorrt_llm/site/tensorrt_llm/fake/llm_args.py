"""The check of the arguments of `LLM`."""

import os
from types import SimpleNamespace
from typing import ClassVar

from tensorrt_llm.fake.argument_classes import classes
from tensorrt_llm.fake.drafts import read_drafts
from tensorrt_llm.fake.versions import ENGINE_ONLY, RELEASE, VERSION

CLASSES = classes(RELEASE)
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
_FROM_NONE = ("max_batch_size", "max_num_tokens", "max_beam_width")
_FIELDS = CLASSES["TorchLlmArgs"].model_fields


class TorchLlmArgs:
    """The arguments of `LLM` by name, checked."""

    model_fields: ClassVar = {
        name: SimpleNamespace(default=_DEFAULTS.get(name), alias=None) for name in sorted(_FIELDS)
    }

    def __init__(self, **given):
        vars(self).update(check_arguments(given))


def check_arguments(given):
    """Return all arguments; raise ValueError before anything loads."""
    if wrong := sorted(given.keys() & ENGINE_ONLY):
        raise ValueError(f"{wrong} are only supported by the TensorRT backend.")
    unknown = sorted(given.keys() - _FIELDS.keys())
    if unknown:
        raise ValueError(f"TorchLlmArgs (TensorRT-LLM {VERSION}) got unexpected {unknown}")
    drafts = {"speculative_config": read_drafts(given.get("speculative_config"))}
    CLASSES["TorchLlmArgs"](**{**given, "speculative_config": None})
    if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_RANK" in os.environ:
        raise RuntimeError("MPI_ERR_SPAWN: could not spawn processes inside an MPI job")
    given = {k: v for k, v in given.items() if v is not None or k not in _FROM_NONE}
    return {**_DEFAULTS, **given, **drafts}
