"""Effect of the chosen sampler on a request's parameters.

Sources in NVIDIA/TensorRT-LLM:

- 1.0: docs/source/features/sampling.md of 1.0.0, and `TorchSampler._process_requests` of
  _torch/pyexecutor/sampler.py: the likeliest token, unless `enable_trtllm_sampler` chooses the C++
  sampler or `enable_mixed_sampler` (pull request 6451) is set.
- `auto`: the C++ sampler in 1.1 (its release notes), in 1.2 with beams only (`SamplerType` in
  llmapi/llm_args.py of 1.2.1).
- The PyTorch sampler takes penalties and bad words and ignores them before pull requests 16485 and
  16052 (July 2026; issue 9442), seeds before 17172 (August 2026).
- The mixed sampler of 1.0 draws by `top_p`, else by `top_k`, else takes the likeliest token:
  `request_strategy` of _torch/pyexecutor/sampler.py near 1.0. Later PyTorch samplers have the three
  together; `min_p` came with pull request 16590 (July 2026).
- The C++ sampler replaces a temperature of 0, and is greedy without limits:
  tests/fakes/triton/backends/tensorrtllm/sampling.py has the sources.
- With drafts: `drafts`.
"""

import copy
import random

from tensorrt_llm.fake.versions import RELEASE

_PENALTIES_SINCE = (1, 3, 0, 23)
_SEEDS_SINCE = _MIN_P_SINCE = (1, 3, 0, 25)
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_PENALTIES = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size"),
    *("bad", "bad_token_ids"),
)


def effective(params, args):
    """Return the parameters that have an effect."""
    if is_cpp(args):
        return _in_runtime(params)
    drafts = args["speculative_config"]
    within = drafts is not None and drafts.within
    found = copy.copy(params)
    for name in _ignored(params, args, drafts, within):
        setattr(found, name, None)
    if RELEASE < _SEEDS_SINCE or (within and not drafts.has_seeds):
        found.seed = random.getrandbits(32)
    return found


def _ignored(params, args, drafts, within):
    if RELEASE < (1, 1):
        yield "temperature"
        if params.top_p is not None:
            yield "top_k"
        if not args.get("enable_mixed_sampler"):
            yield from _SAMPLING
    if within and not drafts.samples:
        yield from _SAMPLING
    if RELEASE < _PENALTIES_SINCE or within:
        yield from _PENALTIES
    if within:
        yield from ("embedding_bias", "min_tokens", "min_p")
    if RELEASE < _MIN_P_SINCE:
        yield "min_p"


def _in_runtime(params):
    """Return the parameters after the runtime's validation and `regularizeTopKTopP`."""
    found = copy.copy(params)
    if found.temperature == 0:
        found.temperature = 1.0
        found.top_k = found.top_k if found.top_k is None else 1
        found.top_p = found.top_p if found.top_p is None else 1.0
    if not found.top_k and not found.top_p and not found.use_beam_search:
        found.top_k = 1
    return found


def is_cpp(args):
    if args["speculative_config"] is not None:
        return False
    if RELEASE < (1, 1):
        return args.get("enable_trtllm_sampler")
    has_beams = args["max_beam_width"] > 1
    is_default = RELEASE < (1, 2) or (RELEASE < (1, 3) and has_beams)
    return args["sampler_type"] == "TRTLLMSampler" or (
        args["sampler_type"] == "auto" and is_default
    )
