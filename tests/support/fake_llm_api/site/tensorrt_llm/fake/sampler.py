"""Effect of the chosen sampler on a request's parameters.

Sources in NVIDIA/TensorRT-LLM:

- 1.0: docs/source/features/sampling.md of 1.0.0, and `TorchSampler._process_requests` of
  _torch/pyexecutor/sampler.py: the likeliest token, unless `enable_trtllm_sampler` chooses the C++
  sampler or `enable_mixed_sampler` (pull request 6451) is set.
- `auto`: the C++ sampler in 1.1 (its release notes), in 1.2 with beams only (`SamplerType` in
  llmapi/llm_args.py of 1.2.1).
- The PyTorch sampler takes penalties and bad words and ignores them before pull requests 16485 and
  16052 (July 2026; issue 9442), seeds before 17172 (August 2026).
- With drafts: `drafts`.
"""

import copy
import random

from tensorrt_llm.fake.versions import RELEASE

_PENALTIES_SINCE = (1, 3, 0, 23)
_SEEDS_SINCE = (1, 3, 0, 25)
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_PENALTIES = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size"),
    *("bad", "bad_token_ids"),
)


def effective(params, args):
    """Return the parameters that have an effect."""
    drafts = args["speculative_config"]
    if is_cpp(args):
        return params
    within = drafts is not None and drafts.within
    ignored = []
    if RELEASE < (1, 1) and not args.get("enable_mixed_sampler"):
        ignored += _SAMPLING
    if within and not drafts.samples:
        ignored += _SAMPLING
    if RELEASE < _PENALTIES_SINCE or within:
        ignored += _PENALTIES
    if within:
        ignored += ("embedding_bias", "min_tokens", "min_p")
    effective = copy.copy(params)
    for name in ignored:
        setattr(effective, name, None)
    if RELEASE < _SEEDS_SINCE or (within and not drafts.has_seeds):
        effective.seed = random.getrandbits(32)
    return effective


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
