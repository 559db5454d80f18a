"""Capacity of an engine's KV cache, in tokens and sequences.

The arithmetic follows the runtime (``calculateCacheSizePerToken`` and ``calculateMaxNumBlocks`` in
NVIDIA/TensorRT-LLM, ``batch_manager/kvCacheManager``): the fraction applies to the memory that is
free after loading; ``max_tokens_in_paged_kv_cache`` alone replaces it; the smaller of both wins.
The LLM API always applies both, to the memory that a step of ``max_num_tokens`` leaves free, and
first runs such a step (``KvCacheCreator`` in ``tensorrt_llm/_torch/pyexecutor/_util.py``). The
runtime rounds up to whole blocks; this module rounds down, to avoid overstating the capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.settings.runtime import RuntimeOptions

DEFAULT_FREE_FRACTION = 0.9

_FRACTION = "kv_cache_free_gpu_mem_fraction"
_TOKENS = "max_tokens_in_paged_kv_cache"
_GB = 10**9
_WASTEFUL = 0.5  # warn about a limit below this share of the possible tokens


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings that determine the size of the KV cache.

    Attributes:
        free_fraction: ``kv_cache_free_gpu_mem_fraction``, of the memory free after loading.
        max_tokens: ``max_tokens_in_paged_kv_cache``.
        attention_window: the largest ``max_attention_window_size``; older tokens are dropped.
        fraction_always: the default fraction also applies with `max_tokens`, as in the LLM API.
        max_bytes: ``max_gpu_total_bytes`` of the LLM API.
    """

    free_fraction: float | None = None
    max_tokens: int | None = None
    attention_window: int | None = None
    fraction_always: bool = False
    max_bytes: int | None = None

    @classmethod
    def from_runtime(cls, runtime: RuntimeOptions) -> CacheSettings:
        return cls(
            free_fraction=runtime.kv_cache_free_gpu_mem_fraction,
            max_tokens=runtime.max_tokens_in_paged_kv_cache,
            attention_window=max(runtime.max_attention_window_size, default=None),
        )


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Shape of one token in the KV cache of an engine.

    Attributes:
        numbers: numbers that one GPU stores per token, by layer.
        pipeline: groups of layers on different GPUs.
        bits: size of one number.
        sequence_tokens: tokens of a full-length sequence.
        shorten: the remedy for sequences that do not fit, as a verb phrase.
    """

    numbers: tuple[int, ...]
    pipeline: int
    bits: float
    block_tokens: int
    sequence_tokens: int
    shorten: str = "build the engine with a shorter max_seq_len or a quantized KV cache"

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token on the GPU that fills up first; 0 for a model without attention."""
        shorter, longer = divmod(len(self.numbers), self.pipeline)
        layers = iter(self.numbers)
        stages = [sum(islice(layers, shorter + (n < longer))) for n in range(self.pipeline)]
        return math.ceil(max(stages) * self.bits / 8)


def keys_and_values(heads: tuple[int, ...], gpus: int, head_size: int) -> tuple[int, ...]:
    return tuple(2 * math.ceil(count / gpus) * head_size for count in heads)


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV cache of one engine; all its GPUs hold the same tokens.

    Attributes:
        bytes_per_token: size on the GPU with the most layers.
        free_bytes: memory of one GPU after the weights and, for the LLM API, after a step.
        sequence_tokens: tokens of a full-length sequence, or of the attention window.
        shorten: the remedy for sequences that do not fit, as a verb phrase.
        late_bytes: memory allocated after the cache, for copies of adapters.
    """

    knobs: CacheSettings
    bytes_per_token: int
    free_bytes: int
    block_tokens: int
    sequence_tokens: int
    shorten: str
    late_bytes: int = 0

    @property
    def tokens_by_fraction(self) -> int:
        """Tokens that fit into the configured fraction of the free memory."""
        share = self.knobs.free_fraction or DEFAULT_FREE_FRACTION
        return int(self.free_bytes * share / self.bytes_per_token)

    @property
    def tokens(self) -> int:
        knobs, tokens = self.knobs, self.tokens_by_fraction
        if knobs.max_tokens is not None:
            both = knobs.free_fraction is not None or knobs.fraction_always
            tokens = min(knobs.max_tokens, tokens) if both else knobs.max_tokens
        if knobs.max_bytes is not None:
            tokens = min(tokens, knobs.max_bytes // self.bytes_per_token)
        return tokens // self.block_tokens * self.block_tokens

    @property
    def sequences(self) -> int:
        """Number of sequences of `sequence_tokens` that fit at once, with one beam each."""
        return (
            self.tokens // self.block_tokens // math.ceil(self.sequence_tokens / self.block_tokens)
        )

    @property
    def cache_bytes(self) -> int:
        return self.tokens * self.bytes_per_token

    @property
    def summary(self) -> str:
        return (
            f"{_gigabytes(self.cache_bytes)} of KV cache per GPU → {self.tokens:,} tokens → "
            f"{self.sequences:,} sequences of {self.sequence_tokens:,} tokens"
        )

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(
            diagnostic
            for diagnostic in (
                *(_too_small(self), _too_large(self), _no_room_for_adapters(self)),
                *(_two_knobs(self), _idle(self)),
            )
            if diagnostic is not None
        )


def kv_cache_capacity(
    shape: CacheShape, knobs: CacheSettings, free_bytes: int, late_bytes: int = 0
) -> Capacity | None:
    """Compute the capacity on GPUs with the given memory.

    Args:
        free_bytes: free memory of the smallest GPU, after the weights (`free_after_weights`) and,
            for the LLM API, `step_bytes`.
        late_bytes: see `Capacity`.

    Returns:
        None for a model without a KV cache.
    """
    per_token, longest = shape.bytes_per_token, shape.sequence_tokens
    if not per_token:
        return None
    return Capacity(
        knobs=knobs,
        bytes_per_token=per_token,
        free_bytes=max(0, free_bytes),
        block_tokens=shape.block_tokens,
        sequence_tokens=min(longest, knobs.attention_window or longest),
        shorten=shape.shorten,
        late_bytes=late_bytes,
    )


def free_after_weights(gpu_free_bytes: int, largest_rank_bytes: int) -> int:
    """Estimate the bytes that remain on a GPU after the engine's weights.

    A rank's file is nearly all weights. The runtime's working memory (activations, CUDA graphs,
    NCCL; often 1 to 3 GB) is not recorded and not subtracted.
    """
    return max(0, gpu_free_bytes - largest_rank_bytes)


def _too_small(capacity: Capacity) -> Diagnostic | None:
    if capacity.sequences:
        return None
    if not capacity.free_bytes:
        return error(
            "weights_exceed_memory",
            "the weights leave no GPU memory for the KV cache; use more or larger GPUs, or "
            "quantized weights.",
        )
    knobs = capacity.knobs
    capped = knobs.max_tokens is not None and (
        (knobs.free_fraction is None and not knobs.fraction_always)
        or knobs.max_tokens < capacity.tokens_by_fraction
    )
    remedy = (
        f"raise model_metadata.runtime.{_TOKENS}, which is {knobs.max_tokens}"
        if capped
        else f"raise model_metadata.runtime.{_FRACTION}, use more or larger GPUs, or "
        f"{capacity.shorten}"
    )
    return error(
        "kv_cache_too_small",
        f"the KV cache would hold {capacity.tokens:,} tokens ({_gigabytes(capacity.cache_bytes)} "
        f"of the {_gigabytes(capacity.free_bytes)} free after the weights), fewer than one "
        f"sequence of {capacity.sequence_tokens:,}; {remedy}.",
    )


def _too_large(capacity: Capacity) -> Diagnostic | None:
    if capacity.cache_bytes <= capacity.free_bytes:
        return None
    return error(
        "kv_cache_exceeds_memory",
        f"model_metadata.runtime.{_TOKENS} of {capacity.knobs.max_tokens:,} takes "
        f"{_gigabytes(capacity.cache_bytes)}, but only {_gigabytes(capacity.free_bytes)} are free "
        f"after the weights; lower it to {capacity.tokens_by_fraction:,} or remove it.",
    )


def _no_room_for_adapters(capacity: Capacity) -> Diagnostic | None:
    """Check that the cache leaves room for the adapters' copies, which no other check includes."""
    late, left = capacity.late_bytes, capacity.free_bytes - capacity.cache_bytes
    if late <= max(0, left):
        return None
    share = max(0.0, math.floor(100 * (1 - late / max(1, capacity.free_bytes))) / 100)
    remedy = (
        f"set model_metadata.runtime.{_FRACTION} to {share:g} or less, "
        if share
        else "use larger GPUs, "
    )
    return warning(
        "adapters_exceed_memory",
        "besides its adapter cache, TensorRT-LLM keeps a second copy of each adapter on the "
        f"first GPU for good (before 1.3; NVIDIA's pull request 12815): {_gigabytes(late)}, and "
        f"the KV cache leaves {_gigabytes(max(0, left))}; {remedy}or serve fewer adapters.",
    )


def _two_knobs(capacity: Capacity) -> Diagnostic | None:
    knobs, by_fraction = capacity.knobs, capacity.tokens_by_fraction
    if knobs.max_tokens is None or knobs.free_fraction is None or knobs.max_tokens == by_fraction:
        return None
    winner, loser = (_TOKENS, _FRACTION) if knobs.max_tokens < by_fraction else (_FRACTION, _TOKENS)
    return warning(
        "kv_cache_knobs",
        f"model_metadata.runtime sets both {_TOKENS} ({knobs.max_tokens:,} tokens) and "
        f"{_FRACTION} ({knobs.free_fraction:g}, here {by_fraction:,} tokens); the smaller, "
        f"{winner}, takes effect: remove {loser}.",
    )


def _idle(capacity: Capacity) -> Diagnostic | None:
    cap, usable = capacity.knobs.max_tokens, capacity.tokens_by_fraction
    if capacity.knobs.free_fraction is not None or cap is None or cap > usable * _WASTEFUL:
        return None
    idle_bytes = (usable - cap) * capacity.bytes_per_token
    return warning(
        "kv_cache_idle_memory",
        f"model_metadata.runtime.{_TOKENS} of {cap:,} leaves {_gigabytes(idle_bytes)} of each GPU "
        f"idle; remove it to hold {usable:,} tokens.",
    )


def _gigabytes(count: int) -> str:
    return f"{count / _GB:.1f} GB"
