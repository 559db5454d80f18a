"""Compilation of guides with OpenVINO GenAI's XGrammar, and one request's sampling for it.

Guides are compiled without the engine's model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from numpy.typing import NDArray
from openvino import opset13

from trtllm_truss.backends.token_model.request import Sampling, TensorRequest
from trtllm_truss.guides.compiler_worker import NOTHING_ALLOWED
from trtllm_truss.requests import Guide, Language

_LANGUAGES: dict[Language, str] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
"""OpenVINO GenAI's names of guide languages."""


def generation_config(request: TensorRequest) -> openvino_genai.GenerationConfig:
    """Convert a request; absent fields keep GenAI's neutral defaults.

    Log probabilities are those of the model before temperature and top_k or top_p. A seed repeats
    an answer, except that with prefix caching GenAI 2026.4 draws once more for a prompt that is
    entirely cached. A cached beginning can also come from generated tokens, whose keys and values
    are rounded otherwise; OpenVINO then rounds activations to 8 bits, and the logits differ
    slightly. Without prefix caching (`enable_kv_cache_reuse: false`) a seed, or greedy decoding,
    repeats an answer at any load.
    """
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_new_tokens
    if request.end_id is None:
        config.ignore_eos = True
    else:
        config.eos_token_id = request.end_id
        config.stop_token_ids = {request.end_id}
        config.min_new_tokens = min(request.sampling.min_tokens, request.max_new_tokens)
    if request.guide is not None:
        config.structured_output_config = structured_output(request.guide)
        config.min_new_tokens = 0  # the guide decides
    config.logprobs = int(
        "output_log_probs" in request.outputs or "cum_log_probs" in request.outputs
    )
    if request.sampling.beam_width > 1:
        _search_beams(config, request.sampling)
    else:
        _sample(config, request.sampling)
    return config


def structured_output(guide: Guide) -> openvino_genai.StructuredOutputConfig:
    config = openvino_genai.StructuredOutputConfig()
    setattr(config, _LANGUAGES[guide.language], guide.text)
    return config


def _sample(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    for name, value in sampling.chosen().items():
        setattr(config, name, value)
    if not sampling.greedy:
        config.do_sample = True
        config.rng_seed = _fold(sampling.seed)


def _search_beams(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    criteria = openvino_genai.StopCriteria
    config.num_beams = config.num_return_sequences = sampling.beam_width
    config.length_penalty = sampling.length_penalty
    config.stop_criteria = criteria.EARLY if sampling.early_stopping else criteria.HEURISTIC


def _fold(seed: int) -> int:
    """Fold all 64 bits of a seed into the lower 32: GenAI's generator ignores the others."""
    return (seed ^ (seed >> 32)) & 0xFFFFFFFF


_NEVER = -100.0
_SUSPECT = 0
"""The first token id. GenAI 2026.4 gives all tokens one logit where a guide allows none, and greedy
decoding then takes the first."""
_SUSPECT_LOGIT = 2 * _NEVER


class GuideCompiler:
    """A pipeline with a trivial model, for the vocabulary of a tokenizer.

    GenAI caches compiled guides per tokenizer and number of logits, so another pipeline with the
    same tokenizer reuses them. Two pipelines must not compile at the same time: GenAI records
    compile times without a lock (2026.4). Compiling releases the GIL.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._model = _serialized(_indifferent(_chances(tokenizer, vocab_size)))
        self._pipeline: openvino_genai.LLMPipeline | None = None

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        """Implement `guides.compiler_worker.Follow`, with random tokens if there are several.

        Only at the beginning a guide that allows no token is found.
        """
        if tokens > 1:
            self._generate(guide, tokens, _Listener(on_token), at_random=True)
        elif self._generate(guide, 1).tokens[0][0] == _SUSPECT:
            # The only token that the guide allows would have the probability 1.
            log_probability = self._generate(guide, 1, at_random=True).scores[0]
            if log_probability < -1:
                raise RuntimeError(NOTHING_ALLOWED)

    def _generate(
        self,
        guide: Guide,
        tokens: int,
        listener: _Listener | None = None,
        *,
        at_random: bool = False,
    ) -> openvino_genai.EncodedResults:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.structured_output_config = structured_output(guide)
        config.do_sample = at_random
        prompt = openvino.Tensor(np.zeros((1, 1), np.int64))
        return self._started().generate(prompt, config, listener)

    def _started(self) -> openvino_genai.LLMPipeline:
        """Return the pipeline, built at first use: its threads must start in the forked trial."""
        if self._pipeline is None:
            self._pipeline = openvino_genai.LLMPipeline(
                *self._model, self._tokenizer, "CPU", ATTENTION_BACKEND="SDPA"
            )
        return self._pipeline


class _Listener(openvino_genai.StreamerBase):  # type: ignore[misc]
    def __init__(self, on_token: Callable[[], None]) -> None:
        super().__init__()
        self._on_token = on_token

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        self._on_token()
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None: ...


def _chances(tokenizer: openvino_genai.Tokenizer, vocab_size: int) -> NDArray[np.float32]:
    """Return logits, FP32 [vocab_size]: equal, but low for blank, end and suspect tokens."""
    logits = np.zeros(vocab_size, np.float32)
    for token, token_id in tokenizer.get_vocab().items():
        if not token.strip():
            logits[token_id] = _NEVER
    logits[tokenizer.get_eos_token_id()] = _NEVER
    logits[_SUSPECT] = _SUSPECT_LOGIT
    return logits


def _indifferent(logits: NDArray[np.float32]) -> openvino.Model:
    """Return a model with GenAI's inputs and constant logits."""
    inputs = {
        "input_ids": opset13.parameter([-1, -1], np.int64),
        "attention_mask": opset13.parameter([-1, -1], np.int64),
        "position_ids": opset13.parameter([-1, -1], np.int64),
        "beam_idx": opset13.parameter([-1], np.int32),
    }
    size = opset13.constant([len(logits)], np.int64)
    shape = opset13.concat([opset13.shape_of(inputs["input_ids"]), size], 0)
    output = opset13.broadcast(opset13.constant(logits), shape)
    for name, node in {**inputs, "logits": output}.items():
        node.output(0).set_names({name})
    return openvino.Model([output], [*inputs.values()], "indifferent")


def _serialized(model: openvino.Model) -> tuple[str, openvino.Tensor]:
    """Return LLMPipeline's arguments for a model: XML, and weights UINT8 [bytes]."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "openvino_model.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        constants = np.fromfile(path.with_suffix(".bin"), np.uint8)
        return path.read_text(encoding="utf-8"), openvino.Tensor(constants)
