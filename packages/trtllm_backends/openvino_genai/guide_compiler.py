"""Compile guides with OpenVINO GenAI's XGrammar, without the engine's model.

It needs only the vocabulary and the EOS token from a CPU engine's folder. It also converts a
request's sampling.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from numpy.typing import NDArray
from openvino import opset13, opset15
from openvino.utils.node_factory import NodeFactory

from trtllm_backends.token_model.request import Sampling, TensorRequest
from trtllm_truss.errors import ArtifactError
from trtllm_truss.gguf import read_metadata
from trtllm_truss.guides.compiler_worker import NOTHING_ALLOWED
from trtllm_truss.literals import token_bytes
from trtllm_truss.requests import Guide, Language


class ModelFilesError(ValueError):
    """The engine folder does not contain a loadable model."""


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        path: a GGUF file, or a folder with an OpenVINO IR.
        context_length: maximum tokens of prompt and output together.
    """

    path: Path
    context_length: int
    vocab_size: int


def find_model(folder: Path) -> ModelFiles:
    """Find the model in an engine folder.

    Raises:
        ModelFilesError: there is not exactly one model, or its metadata is incomplete.
    """
    if (folder / "openvino_model.xml").is_file():
        return _openvino_ir(folder)
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise ModelFilesError(
            f"{folder} holds no openvino_model.xml and {len(found)} .gguf files; a CPU engine is "
            "one or the other."
        )
    return _gguf(found[0])


@contextmanager
def loadable(path: Path) -> Iterator[Path]:
    """Provide a model in a form that OpenVINO GenAI can load; remove a temporary copy on exit.

    Version 2026.4 opens a GGUF file for reading and writing, so a file that this user cannot write
    is copied: for example, one that root installed, or one on a read-only volume.
    """
    if path.is_dir() or os.access(path, os.W_OK):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        shutil.copyfile(path, copy)
        yield copy


def _openvino_ir(folder: Path) -> ModelFiles:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return ModelFiles(folder, config["max_position_embeddings"], config["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelFilesError(
            f"{path} must name max_position_embeddings and vocab_size: {error!r}"
        ) from error


def _gguf(path: Path) -> ModelFiles:
    try:
        metadata: dict[str, Any] = read_metadata(path)
        context_length = metadata[f"{metadata['general.architecture']}.context_length"]
        return ModelFiles(path, context_length, len(metadata["tokenizer.ggml.tokens"]))
    except ArtifactError as error:
        raise ModelFilesError(str(error)) from error
    except KeyError as error:
        raise ModelFilesError(f"{path} lacks the metadata key {error}.") from error


_BYTE = 6
"""GGUF's type of a token `<0xXX>`: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""
_ROLES = {"bos": "bos", "eos": "eos", "padding": "pad"}
"""GGUF's names of special tokens, and those in `config.json`."""


def load_vocabulary(path: Path) -> openvino_genai.Tokenizer:
    """Load a tokenizer for guides; one from GGUF cannot encode, and also decodes special tokens.

    GenAI 2026.4 itself takes two seconds for SmolLM2's 49,152 tokens and their merges, because it
    copies a table of bytes for each.

    Args:
        path: a GGUF file, or a folder with an OpenVINO IR.

    Raises:
        RuntimeError: GenAI cannot read it.
    """
    metadata: dict[str, Any] = {} if path.is_dir() else read_metadata(path)
    if (contents := _contents(metadata)) is None:
        return openvino_genai.Tokenizer(path)
    ids = {name: metadata.get(f"tokenizer.ggml.{role}_token_id") for role, name in _ROLES.items()}
    config = {f"{name}_token_id": found for name, found in ids.items() if found is not None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        decoder = _decoder(contents)
        openvino.save_model(decoder, folder / "openvino_detokenizer.xml", compress_to_fp16=False)
        return openvino_genai.Tokenizer(folder)


def _contents(metadata: dict[str, Any]) -> list[bytes] | None:
    """Return the bytes of each token; None for a vocabulary that is not BPE."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            return [token_bytes(token) for token in tokens]
        case "llama":  # SentencePiece's
            kinds = metadata["tokenizer.ggml.token_type"]
            return [
                bytes([int(token[1:-1], 16)]) if kind == _BYTE else _spaced(token).encode()
                for token, kind in zip(tokens, kinds, strict=True)
            ]
    return None


def _spaced(token: str) -> str:
    return token.replace("\u2581", " ")


def _decoder(tokens: list[bytes]) -> openvino.Model:
    """Return a model that maps ids, INT64 [n, m], to texts, strings [n]."""
    ends = np.cumsum([len(token) for token in tokens], dtype=np.int32)
    begins = np.concatenate([np.zeros(1, np.int32), ends[:-1]])
    characters = np.frombuffer(b"".join(tokens), np.uint8)
    ids = opset15.parameter([-1, -1], np.int64)
    vocabulary = [opset15.constant(array) for array in (begins, ends, characters)]
    decoded = _operators().create("VocabDecoder", [ids, *vocabulary]).outputs()
    joined = _operators().create("FuzeRagged", decoded[:4]).outputs()
    texts = opset15.string_tensor_pack(*joined, decoded[4])
    return openvino.Model([texts], [ids], "detokenizer")


@cache  # keep alive: destroying it unloads the code of nodes in use
def _operators() -> NodeFactory:
    """Return OpenVINO's operators, including those for text."""
    package = importlib.util.find_spec("openvino_tokenizers")
    assert package is not None
    assert package.origin is not None
    factory = NodeFactory()
    factory.add_extension(Path(package.origin).parent / "lib" / "libopenvino_tokenizers.so")
    return factory


_LANGUAGES: dict[Language, str] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
"""OpenVINO GenAI's names of guide languages."""


def generation_config(request: TensorRequest) -> openvino_genai.GenerationConfig:
    """Convert a request; absent fields keep GenAI's neutral defaults.

    Log probabilities are the model's, before temperature, top_k and top_p. A seed reproduces a
    response, except that with prefix caching GenAI 2026.4 draws once more for a prompt that is
    entirely cached. A cached prefix can also come from generated tokens, whose keys and values are
    rounded differently; OpenVINO then rounds activations to 8 bits, and the logits differ slightly.
    Without prefix caching (`enable_kv_cache_reuse: false`), a seed or greedy decoding reproduces a
    response at any load.
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
    if not sampling.decoding.is_greedy:
        config.do_sample = True
        config.rng_seed = _fold(sampling.seed)


def _search_beams(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    criteria = openvino_genai.StopCriteria
    config.num_beams = config.num_return_sequences = sampling.beam_width
    config.length_penalty = sampling.length_penalty
    config.stop_criteria = criteria.EARLY if sampling.early_stopping else criteria.HEURISTIC


def _fold(seed: int) -> int:
    """Fold all 64 bits of a seed into the lower 32; GenAI's generator ignores the others."""
    return (seed ^ (seed >> 32)) & 0xFFFFFFFF


_NEVER = -100.0
_SUSPECT = 0
"""The first token id.

GenAI 2026.4 gives all tokens the same logit where a guide allows none, and greedy decoding then
takes the first.
"""
_SUSPECT_LOGIT = 2 * _NEVER
_DRAWN_FROM = 4096
"""Number of equally likely tokens in a trial: GenAI takes half the time it needs with all."""


class GuideCompiler:
    """A pipeline with a trivial model, for a tokenizer's vocabulary.

    GenAI caches compiled guides by tokenizer and number of logits, so another pipeline with the
    same tokenizer reuses them. Two pipelines must not compile at the same time: GenAI records
    compile times without a lock (2026.4). Compiling releases the GIL.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._model = _serialized(_indifferent(_chances(tokenizer, vocab_size)))
        self._pipeline: openvino_genai.LLMPipeline | None = None

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        """Implement `guides.compiler_worker.Follow`, with random tokens if several are allowed.

        A guide that allows no token is detected in its initial state only.
        """
        if tokens > 1:
            self._generate(guide, tokens, _Listener(on_token), at_random=True)
        elif self._generate(guide, 1).tokens[0][0] == _SUSPECT:
            # A single allowed token would have the probability 1.
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
        if tokens > 1:
            config.top_k = _DRAWN_FROM
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
    """Return logits, FP32 [vocab_size]: equal, but low for blank, end and fallback tokens."""
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
