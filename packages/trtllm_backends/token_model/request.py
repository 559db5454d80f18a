"""Convert the input tensors of `tensorrt_llm` to a validated request.

Inputs the engine does not support must be neutral. Word lists have TensorRT-LLM's format; stop
words are searched for in generated tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from trtllm_backends.tensors import Tensors
from trtllm_truss.decoding import GREEDY, LEAST_TEMPERATURE, Decoding, in_runtime, inputs_for
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING, RequestField, SamplingFields
from trtllm_truss.requests import Guide, Language

Word = tuple[int, ...]
"""The token ids of one word."""


def read_words(name: str, array: NDArray[Any] | None) -> tuple[Word, ...]:
    """Read a word list.

    Args:
        name: name of the tensor, for messages.
        array: INT32 [1, 2, n] or [2, n]. Row 0 contains the token ids of all words one after
            another, padded with 0. Row 1 contains the end offset of each word, padded with -1:
            ``[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]`` is {5, 7, 3} and {9, 2}. The format and the
            wording of its errors are those of TensorRT-LLM's C++ backend.

    Raises:
        InvalidRequest: the list is malformed.
    """
    if array is None or array.size == 0:
        return ()
    if array.size % 2:
        raise InvalidRequest(
            f"{name}: Sparse list must not have odd length: {array.size} values came."
        )
    if array.shape[-2:-1] != (2,) or array.size != 2 * array.shape[-1]:
        raise InvalidRequest(f"{name} has shape {list(np.shape(array))}; send [1, 2, n].")
    tokens, ends = (row.tolist() for row in array.reshape(2, -1))
    while ends and ends[-1] == -1:
        ends.pop()
    return tuple(_cut(name, tokens, ends))


def _cut(name: str, tokens: list[int], ends: list[int]) -> list[Word]:
    words = []
    start = 0
    for end in ends:
        if end == -1:
            raise InvalidRequest(
                f"{name}: Sparse list must not have additional -1s between offsets."
            )
        if not 0 <= end <= len(tokens):
            raise InvalidRequest(
                f"{name}: Sparse list must not have out-of-bound offsets: {end} of {len(tokens)}."
            )
        if end <= start:
            raise InvalidRequest(
                f"{name}: Sparse list must not have non-increasing offsets: {end}."
            )
        words.append(tuple(tokens[start:end]))
        start = end
    return words


class StopWords:
    """Finds the generated token that completes a stop word.

    A word may start in the prompt, as in TensorRT-LLM, but must end with a generated token.
    """

    def __init__(self, words: Sequence[Word], prompt: Sequence[int]) -> None:
        self._by_last_token: dict[int, list[list[int]]] = defaultdict(list)
        for word in words:
            self._by_last_token[word[-1]].append(list(word))
        self._longest = max(map(len, words), default=0)
        self._tail = list(prompt[-self._longest :]) if words else []

    def complete(self, token: int) -> bool:
        """Add the next generated token; return True if it completes a word."""
        if not self._by_last_token:
            return False
        self._tail.append(token)
        del self._tail[: -self._longest]
        words = self._by_last_token.get(token, ())
        return any(self._tail[-len(word) :] == word for word in words)


ENGINE_DEFAULTS: dict[str, Any] = {row.attribute: row.engine_default for row in SAMPLING}
"""The defaults of TensorRT-LLM's C++ backend, by attribute of `Sampling`."""


@dataclass(slots=True)
class Sampling(SamplingFields[NoReturn]):
    """Sampling inputs with all values filled in.

    Attributes:
        early_stopping: beam search stops as soon as `beam_width` beams have finished.
    """

    beam_width: int = 1
    early_stopping: bool = True

    @property
    def decoding(self) -> Decoding:
        """Return the inputs as NVIDIA reads them, but a temperature of 0 is always greedy."""
        if self.temperature < LEAST_TEMPERATURE and self.beam_width == 1:
            return GREEDY
        return in_runtime(self, self.beam_width)

    def chosen(self) -> dict[str, float]:
        """Return the values for one beam that change the choice of tokens.

        The libraries of the LLM API and of the CPU engine use the same names, and are greedy
        without any.
        """
        penalties = {
            row.attribute: value
            for row in SAMPLING
            if row.effect == "penalty" and row.changes(value := getattr(self, row.attribute))
        }
        if self.decoding.is_greedy:
            return penalties
        sent = inputs_for(self.decoding)
        return {**penalties, **{name: value for name, value in sent.items() if value is not None}}


def read_sampling(tensors: Tensors, max_beam_width: int, engine: str) -> Sampling:
    """Read the sampling inputs by their newest or older names.

    Raises:
        InvalidRequest: a value is out of range, or beam search cannot support it.
    """
    values = {row.attribute: _read(row, tensors) for row in SAMPLING}
    values["top_p"] = max(0.0, values["top_p"])
    for row in SAMPLING:
        accepted, value = row.tensor_range or row.range, values[row.attribute]
        if not accepted.holds(value):
            raise InvalidRequest(f"{row.tensors[0]} is {value}; send a value {accepted.rule}.")
    sampling = Sampling(
        **values,
        beam_width=tensors.integer("beam_width", 1),
        early_stopping=tensors.flag("early_stopping", True),
    )
    _check_beams(sampling, max_beam_width, engine)
    return sampling


def _read(row: RequestField, tensors: Tensors) -> Any:
    read: Any = tensors.integer if row.kind is int else tensors.number
    value = row.engine_default
    for name in reversed(row.tensors):
        value = read(name, value)
    return value


def _check_beams(sampling: Sampling, max_beam_width: int, engine: str) -> None:
    if not 1 <= sampling.beam_width <= max_beam_width:
        raise InvalidRequest(
            f"Requested beam width {sampling.beam_width} is incorrect: beam_width must be from 1 "
            f"to max_beam_width, which is {max_beam_width}."
        )
    if sampling.beam_width == 1:
        return
    for row in SAMPLING:
        value = getattr(sampling, row.attribute)
        if row.effect == "temperature":
            value = sampling.decoding.temperature
        if not row.with_beams and row.changes(value):
            raise InvalidRequest(
                f"{row.name} {value} is not supported with beam_width {sampling.beam_width} by "
                f"{engine}; leave one of them out."
            )


_NEUTRAL: dict[str, tuple[float, ...]] = {
    "draft_acceptance_threshold": (0,),
    "num_return_sequences": (0, 1),
    "runtime_top_p_min": (0, 1e-6),
    "runtime_top_p_decay": (0, 1),
    "runtime_top_p_reset_ids": (-1,),
    "beam_search_diversity_rate": (0,),
    "return_context_logits": (0,),
    "return_generation_logits": (0,),
    "return_kv_cache_reuse_stats": (0,),
    "return_perf_metrics": (0,),
    "prompt_vocab_size": (0,),
    "lora_task_id": (0,),
    "num_top_logprobs": (0,),
    "return_prompt_logprobs": (0,),
    "embedding_bias": (0,),
}
"""Inputs with the values that have no effect."""

_EMPTY = frozenset((
    "encoder_input_features", "encoder_output_lengths", "decoder_input_ids",
    "decoder_input_lengths", "draft_input_ids", "draft_logits", "prompt_embedding_table",
    "prompt_table_extra_ids", "cross_attention_mask", "skip_cross_attn_blocks",
    "mrope_rotary_cos_sin", "mrope_position_deltas", "lora_weights", "lora_config",
    "context_phase_params", "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms",
    "retention_decode_priority", "retention_decode_duration_ms", "lookahead_window_size",
    "lookahead_ngram_size", "lookahead_verification_set_size",
))  # fmt: skip
"""Inputs that have no effect only while empty, or an empty string."""


def validate_capabilities(tensors: Tensors, engine: str, served: Set[str]) -> None:
    """Refuse inputs that the engine does not support, by name.

    Args:
        engine: its name in messages.
        served: inputs of the tables above that it supports.

    Raises:
        InvalidRequest: such an input has a value that would have an effect.
    """
    for name, array in tensors:
        if array.size and name not in served and _asks_for_something(name, array):
            raise InvalidRequest(f"{name} is not supported by {engine}; leave it out.")


def _asks_for_something(name: str, array: NDArray[Any]) -> bool:
    if name == "bad_words_list":
        return bool(read_words(name, array))
    if name in _EMPTY:
        return bool(array.dtype != object or array.any())
    neutral = _NEUTRAL.get(name)
    return neutral is not None and not all(
        any(abs(value - allowed) < 1e-9 for allowed in neutral) for value in array.ravel().tolist()
    )


TOP_LOG_PROBS, PROMPT_LOG_PROBS = "num_top_logprobs", "return_prompt_logprobs"
"""Inputs that TensorRT-LLM's model does not have."""
MAX_TOP_LOG_PROBS = 20
"""TensorRT-LLM's limit in the 1.3 pre-releases."""

CACHED_TOKENS = "cached_tokens"
"""An output that TensorRT-LLM's model does not have: prompt tokens found in the KV cache."""
GUIDE_TYPE, GUIDE_TEXT = "guided_decoding_guide_type", "guided_decoding_guide"

_LANGUAGES: tuple[Language, ...] = get_args(Language)
_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""What XGrammar, and so TensorRT-LLM, uses for the type `json`."""


@dataclass(frozen=True)
class ModelLimits:
    """Limits of the loaded model.

    Attributes:
        context_length: maximum tokens of prompt and output together.
        vocab_size: token ids are below this.
        kv_cache_tokens: capacity of the KV cache; None if it grows.
        exclude_input_in_output: default of the request's flag of that name.
        max_input_tokens: maximum prompt tokens, if less than the context.
        engine: the engine's name in messages.
        served: inputs of `unsupported` that this engine supports.
    """

    context_length: int
    vocab_size: int
    kv_cache_tokens: int | None = None
    max_beam_width: int = 1
    exclude_input_in_output: bool = False
    max_input_tokens: int | None = None
    engine: str = "the CPU engine"
    served: frozenset[str] = frozenset()

    @property
    def longest_prompt(self) -> int:
        """Return the maximum of prompt tokens."""
        longest = self.context_length - 1
        return longest if self.max_input_tokens is None else min(longest, self.max_input_tokens)


@dataclass(frozen=True, eq=False)
class TensorRequest:
    """A request that the engine can serve.

    Attributes:
        id: Triton's request id, by which a `stop` request finds it; may be empty.
        prompt: token ids, INT64 [n], n > 0.
        max_new_tokens: maximum generated tokens, within the context.
        end_id: the token that finishes the choice; None for none.
        guide: constraint on the output; None for any text.
        guide_bytes: memory of the compiled guide, if the sender has checked it, as the Truss does;
            otherwise None.
        is_repeatable: False if the output may depend on other requests.
        outputs: names of the output tensors to build.
        top_log_probs: number of likeliest tokens to return per position.
    """

    id: str
    prompt: NDArray[np.int64]
    max_new_tokens: int
    end_id: int | None
    stop_words: tuple[Word, ...]
    sampling: Sampling
    guide: Guide | None
    guide_bytes: int | None
    streaming: bool
    echo_prompt: bool
    outputs: frozenset[str]
    top_log_probs: int = 0
    is_repeatable: bool = True

    @property
    def scores_prompt(self) -> bool:
        """Return True if log probabilities of the prompt are requested."""
        return "prompt_logprobs" in self.outputs

    @property
    def kv_cache_tokens(self) -> int:
        """Return the maximum tokens held in the KV cache; the last one is never cached."""
        beam_tokens = len(self.prompt) + self.max_new_tokens - 1
        return beam_tokens * self.sampling.beam_width


def read_request(
    request_id: str,
    tensors: Tensors,
    requested_outputs: Collection[str],
    limits: ModelLimits,
    *,
    guide_bytes: int | None = None,
    is_seeded: bool = True,
) -> TensorRequest:
    """Read and validate one request, by the names of TensorRT-LLM's `tensorrt_llm` model.

    Args:
        is_seeded: False if nobody can request the same seed again.

    Raises:
        InvalidRequest: it cannot be served; the caller is at fault.
    """
    validate_capabilities(tensors, limits.engine, limits.served)
    prompt = _read_prompt(tensors, limits)
    sampling = read_sampling(tensors, limits.max_beam_width, limits.engine)
    streaming = tensors.flag("streaming", False)
    if streaming and sampling.beam_width > 1:
        raise InvalidRequest(
            f"Streaming mode is only supported with beam width of 1 by {limits.engine}."
        )
    end_id = tensors.integer("end_id", -1)
    exclude_prompt = tensors.flag("exclude_input_in_output", limits.exclude_input_in_output)
    request = TensorRequest(
        id=request_id,
        prompt=prompt,
        max_new_tokens=_read_output_len(tensors, limits.context_length - len(prompt)),
        end_id=end_id if end_id >= 0 else None,
        stop_words=read_words("stop_words_list", tensors.array("stop_words_list")),
        sampling=sampling,
        guide=_read_guide(tensors),
        guide_bytes=guide_bytes,
        streaming=streaming,
        echo_prompt=not (streaming or exclude_prompt),
        outputs=_read_outputs(tensors, requested_outputs),
        top_log_probs=_read_top_log_probs(tensors),
        is_repeatable=is_seeded or sampling.decoding.is_greedy or sampling.beam_width > 1,
    )
    _check_guided(request, limits.engine)
    _check_end(request, limits.engine)
    _check_kv_cache(request, limits.kv_cache_tokens)
    return request


def _read_prompt(tensors: Tensors, limits: ModelLimits) -> NDArray[np.int64]:
    ids = tensors.array("input_ids")
    if ids is None:
        raise InvalidRequest("input_ids is not present in the request.")
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise InvalidRequest(
            f"input_ids has shape {list(ids.shape)}; send [1, n], one prompt a request."
        )
    length = tensors.integer("input_lengths", ids.shape[1])
    if not 1 <= length <= ids.shape[1]:
        raise InvalidRequest(
            f"input_lengths is {length}; with input_ids of {ids.shape[1]} tokens it must be from "
            f"1 to {ids.shape[1]}."
        )
    if length > limits.longest_prompt:
        raise InvalidRequest(
            f"Prompt length ({length}) exceeds maximum input length ({limits.longest_prompt})."
        )
    prompt = ids[0, :length].astype(np.int64)
    # OpenVINO reads past its tables, without an error, for ids outside the vocabulary.
    if np.min(prompt) < 0 or np.max(prompt) >= limits.vocab_size:
        raise InvalidRequest(f"input_ids must be token ids from 0 to {limits.vocab_size - 1}.")
    return prompt


def _read_output_len(tensors: Tensors, room: int) -> int:
    if tensors.array("request_output_len") is None:
        raise InvalidRequest("request_output_len is not present in the request.")
    length = tensors.integer("request_output_len", 0)
    if length < 1:
        raise InvalidRequest(f"request_output_len is {length}; send 1 or more.")
    return min(length, room)


def _read_outputs(tensors: Tensors, requested: Collection[str]) -> frozenset[str]:
    mandatory: Sequence[str] = ("output_ids", "sequence_length")
    for name in mandatory:
        if name not in requested:
            raise InvalidRequest(f"{name} tensor must be present in list of output tensors")
    on_demand = {
        "cum_log_probs": "return_log_probs",
        "output_log_probs": "return_log_probs",
        "top_logprob_ids": TOP_LOG_PROBS,
        "top_logprobs": TOP_LOG_PROBS,
        "prompt_logprobs": PROMPT_LOG_PROBS,
        "prompt_top_ids": PROMPT_LOG_PROBS,
        "prompt_top_logprobs": PROMPT_LOG_PROBS,
        "num_input_tokens": "return_num_input_tokens",
        "num_output_tokens": "return_num_output_tokens",
    }
    demanded = {name for name, flag in on_demand.items() if tensors.flag(flag, False)}
    free = {*mandatory, "batch_index", "sequence_index", CACHED_TOKENS}
    return frozenset(requested) & (demanded | free)


def _read_top_log_probs(tensors: Tensors) -> int:
    count = tensors.integer(TOP_LOG_PROBS, 0)
    if not 0 <= count <= MAX_TOP_LOG_PROBS:
        raise InvalidRequest(
            f"{TOP_LOG_PROBS} is {count}; send a value from 0 to {MAX_TOP_LOG_PROBS}."
        )
    return count


def _read_guide(tensors: Tensors) -> Guide | None:
    kind, text = tensors.text(GUIDE_TYPE), tensors.text(GUIDE_TEXT)
    names = ", ".join(["json", *_LANGUAGES])
    if not kind:
        if text:
            raise InvalidRequest(f"{GUIDE_TEXT} is given without {GUIDE_TYPE}; send {names}.")
        return None
    if kind == "json":
        return Guide("json_schema", _ANY_JSON)
    for language in _LANGUAGES:
        if kind == language and text:
            return Guide(language, text)
        if kind == language:
            raise InvalidRequest(
                f"{GUIDE_TYPE} is {kind}, but {GUIDE_TEXT} is empty; send its text."
            )
    raise InvalidRequest(f"{GUIDE_TYPE} is {kind[:40]!r}; send {names}.")


def _check_guided(request: TensorRequest, engine: str) -> None:
    """Refuse fields that would violate the guide.

    All beams share one position in it, for example.
    """
    for name, value in (
        ("beam_width", request.sampling.beam_width),
        ("min_tokens", request.sampling.min_tokens),
    ):
        if request.guide is not None and value > 1:
            raise InvalidRequest(
                f"{name} {value} is not supported with {GUIDE_TYPE} by {engine}; leave one of them "
                "out."
            )


def _check_end(request: TensorRequest, engine: str) -> None:
    """Require an end id: beams would finish at the model's own, guides at none."""
    beams = request.sampling.beam_width > 1
    if request.end_id is None and (beams or request.guide is not None):
        raise InvalidRequest(
            f"{'beam_width above 1' if beams else GUIDE_TYPE} needs end_id on {engine}; send the "
            "token that ends an answer."
        )


def _check_kv_cache(request: TensorRequest, capacity: int | None) -> None:
    if capacity is not None and request.kv_cache_tokens > capacity:
        raise InvalidRequest(
            f"A prompt of {len(request.prompt)} tokens, request_output_len "
            f"{request.max_new_tokens} and beam_width {request.sampling.beam_width} need "
            f"{request.kv_cache_tokens} tokens of KV cache, which holds {capacity}; ask for less "
            "or raise max_tokens_in_paged_kv_cache."
        )
