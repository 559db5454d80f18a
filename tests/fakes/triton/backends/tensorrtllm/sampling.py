"""A request's sampling as TensorRT-LLM's runtime reads and applies it, one beam on the CPU.

Sources in NVIDIA/TensorRT-LLM unless named otherwise:

- the inputs: `getSamplingConfigFromTensors` of inflight_batcher_llm/src/utils.cc in
  triton-inference-server/tensorrtllm_backend, v0.10.0:360-420, and of
  triton_backend/inflight_batcher_llm/src/utils.cc near 1.2. It passes arguments by position, and
  `executor::SamplingConfig` of 1.2 has one more in between (pull request 13633).
- the ranges: cpp/tensorrt_llm/executor/samplingConfig.cpp at 3585984b.
- a temperature of 0: `validate` of cpp/include/tensorrt_llm/runtime/samplingConfig.h at 09e2cf77.
- defaults: cpp/tensorrt_llm/layers/defaultDecodingParams.h; which layer draws: `regularizeTopKTopP`
  of cpp/tensorrt_llm/kernels/samplingTopKKernels.h and layers/top[KP]SamplingLayer.cpp.
- penalties: `batchApplyPenalty` of cpp/tensorrt_llm/kernels/penaltyKernels.cu.
- the draw and its log probability: `topKStage2Sampling` of kernels/samplingTopKKernels.cu and
  `topPSsampling` of kernels/samplingTopPKernels.cu.

The random numbers are not cuRAND's.
"""

import math
import operator

import numpy as np

# The arguments that the backend passes, in its order, with the inputs for them.
_ARGUMENTS = {
    "beamWidth": ("beam_width",),
    "topK": ("runtime_top_k",),
    "topP": ("runtime_top_p",),
    "topPMin": ("runtime_top_p_min",),
    "topPResetIds": ("runtime_top_p_reset_ids",),
    "topPDecay": ("runtime_top_p_decay",),
    "seed": ("seed", "random_seed"),
    "temperature": ("temperature",),
    "minTokens": ("min_tokens", "min_length"),
    "beamSearchDiversityRate": ("beam_search_diversity_rate",),
    "repetitionpenalty": ("repetition_penalty",),
    "presencePenalty": ("presence_penalty",),
    "frequencyPenalty": ("frequency_penalty",),
    "lengthPenalty": ("len_penalty",),
    "earlyStopping": ("early_stopping",),
    "noRepeatNgramSize": ("no_repeat_ngram_size",),
    "numReturnSequences": ("num_return_sequences",),
}
_ADDED, _ADDED_BEFORE, _ADDED_IN = "promptIgnoreLength", "lengthPenalty", (1, 2)
_RANGES = {
    "beamWidth": ("> 0",),
    "topK": (">= 0",),
    "topP": ("> 0.f", "<= 1.f"),
    "topPMin": (">= 0.f", "<= 1.f"),
    "topPResetIds": (">= 0",),
    "topPDecay": ("> 0.f", "<= 1.f"),
    "temperature": (">= 0.f",),
    "minTokens": (">= 0",),
    "beamSearchDiversityRate": (">= 0.f",),
    "repetitionpenalty": ("> 0.f",),
    "promptIgnoreLength": (">= 0",),
    "lengthPenalty": (">= 0.f",),
    "earlyStopping": (">= 0",),
    "noRepeatNgramSize": (">= 0",),
    "numReturnSequences": ("> 0",),
}
_SIGNS = {">": operator.gt, ">=": operator.ge, "<=": operator.le}
_TOP_K_MAX = 1024


def construct(inputs, release):
    """Return the arguments that a release's `executor::SamplingConfig` gets.

    Args:
        inputs: values by names of tensors.
        release: of TensorRT-LLM, such as (1, 2).

    Raises:
        ValueError: one is out of range, with the text of the assertion.
    """
    passed = [
        next((inputs[name] for name in names if name in inputs), None)
        for names in _ARGUMENTS.values()
    ]
    names = [*_ARGUMENTS]
    if release == _ADDED_IN:
        names.insert(names.index(_ADDED_BEFORE), _ADDED)
    config = {name: value for name, value in zip(names, passed, strict=False) if value is not None}
    if config.get("topP", 1) <= 0:
        del config["topP"]
    for name, checks in _RANGES.items():
        for check in checks if name in config else ():
            sign, limit = check.split()
            if not _SIGNS[sign](config[name], float(limit.rstrip("f"))):
                raise ValueError(f"{name}{'' if name == 'beamWidth' else '.value()'} {check}")
    return config


def validated(config, release):
    """Return the arguments that the decoder gets."""
    if config.get("temperature") != 0 or release < (0, 11):
        return config
    greedy = {"topK": 1, "topP": 1.0}
    return {**config, "temperature": 1.0} | {k: v for k, v in greedy.items() if k in config}


class Sampler:
    """Chooses one request's tokens.

    Attributes:
        temperature: divides logits.
        top_k: tokens to draw from; 0 for all, from which the layer for `top_p` draws.
        top_p: part of their probability to draw from.

    Args:
        config: what `validated` returns.
        normalizes: relate log probabilities to the tokens that a top-k draw chose from.
        bias: added to the logits; None for none.
        bad_words: lists of ids.
        end_id: negative for none.
    """

    def __init__(self, config, *, normalizes, bias, bad_words, end_id):
        self._config = config
        self._normalizes = normalizes
        self._bias = bias
        self._bad_words = bad_words
        self._end_id = end_id
        self._random = np.random.default_rng(config.get("seed", 0))
        self.temperature = config.get("temperature", 1.0)
        self.top_k, self.top_p = min(config.get("topK", 0), _TOP_K_MAX), config.get("topP", 0.0)
        if not self.top_k and not self.top_p:
            self.top_k = 1
        if self.top_k and not self.top_p:
            self.top_p = 1.0

    def choose(self, logits, prompt, output):
        """Return the next token and its log probability.

        Args:
            logits: the model's, of each token.
            prompt: its ids.
            output: ids so far.
        """
        scaled = self._penalized(logits.astype(np.float32), prompt, output)
        log_probs = scaled - scaled.max()
        log_probs -= math.log(np.exp(log_probs, dtype=np.float64).sum())
        if self._config.get("beamWidth", 1) > 1:
            token = int(scaled.argmax())
            return token, float(log_probs[token])
        order = np.argsort(-log_probs, kind="stable")[: self.top_k or None]
        reached = np.cumsum(np.exp(log_probs[order], dtype=np.float64))
        drawn = self._random.random() * self.top_p * (reached[-1] if self.top_k else 1)
        token = int(order[min(int(np.searchsorted(reached, drawn)), len(order) - 1)])
        log_prob = float(log_probs[token])
        if self.top_k and self._normalizes:
            log_prob -= math.log(reached[-1])
        return token, log_prob

    def _penalized(self, logits, prompt, output):
        config = self._config
        if self._bias is not None:
            logits = logits + self._bias[: len(logits)]
        if self.temperature != 1:
            logits = logits / np.float32(self.temperature + 1e-6)
        skipped = config.get("promptIgnoreLength", 0)
        occurred, before = [*prompt, *output], [*prompt[int(skipped) :], *output]
        for token in set(occurred):
            factor = config.get("repetitionpenalty", 1.0)
            logits[token] *= factor if logits[token] < 0 else 1 / factor
        for token in set(before):
            logits[token] -= config.get("presencePenalty", 0.0)
            logits[token] -= config.get("frequencyPenalty", 0.0) * before.count(token)
        if len(output) < config.get("minTokens", 1) and self._end_id >= 0:
            logits[self._end_id] = -np.inf
        for *start, last in self._bad_words:
            if occurred[len(occurred) - len(start) :] == start:
                logits[last] = -np.inf
        return logits
