"""`SamplingParams` and its rules."""

import dataclasses
import os
from typing import Any

from tensorrt_llm.fake.versions import IS_1_3, SAMPLING_FIELDS

_DEFAULTS = {
    "max_tokens": 32,
    "n": 1,
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "use_beam_search": False,
    "detokenize": True,
    "add_special_tokens": True,
    "skip_special_tokens": True,
    "exclude_input_from_output": True,
}
_GUIDES = ("json", "regex", "grammar", "json_object", "structural_tag")


@dataclasses.dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self):
        given = [name for name in _GUIDES if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"Only one guide can be used, but got {given}")


def _validate(params):
    if params.temperature is not None and params.temperature < 0:
        raise ValueError(f"require temperature >= 0, got temperature={params.temperature}")
    if params.top_p is not None and not 0 <= params.top_p <= 1:
        raise ValueError(f"require 0 <= top_p <= 1, got top_p={params.top_p}")
    if params.top_k is not None and params.top_k < 0:
        raise ValueError(f"require top_k >= 0, got top_k={params.top_k}")
    if params.min_p is not None and not 0 <= params.min_p <= 1:  # executor/samplingConfig.cpp
        raise RuntimeError("Assertion failed: minP.value() >= 0.f && minP.value() <= 1.0f")
    params.best_of = params.best_of or params.n
    if params.best_of < params.n:
        raise ValueError("best_of must be greater than or equal to n")
    may_repeat = os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING") == "1"
    if params.best_of > 1 and params.is_greedy and not params.use_beam_search and not may_repeat:
        raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
    if params.pad_id is None:
        params.pad_id = params.end_id


def _is_greedy(params):
    if params.temperature is None and params.top_p is None and params.top_k is None:
        return not params.use_beam_search
    return params.temperature == 0 or params.top_k == 1 or params.top_p == 0


def _setup(params, eos_id):
    """Fill in the end token, as before the first use of a request."""
    if params.end_id is None:
        if eos_id is None:
            raise ValueError("tokenizer is required when end_id is not set")
        params.end_id = params.pad_id = eos_id
    elif params.stop is not None or params.bad is not None:
        raise RuntimeError("Please call `setup` before stop or bad words are used.")


SamplingParams = dataclasses.make_dataclass(
    "SamplingParams",
    [(name, Any, dataclasses.field(default=_DEFAULTS.get(name))) for name in SAMPLING_FIELDS],
    namespace={
        "__post_init__": _validate,
        "is_greedy": property(_is_greedy),
        "setup": _setup,
        "wanted_log_probs": property(
            lambda params: None if params.logprobs == 0 and not IS_1_3 else params.logprobs
        ),
    },
    kw_only=True,
    slots=True,
)
SamplingParams.__module__ = __name__  # for pickle
