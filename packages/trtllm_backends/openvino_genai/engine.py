"""OpenVINO GenAI's continuous-batching pipeline for one model, and its settings.

The settings come from `parameters` in config.pbtxt.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from numpy.typing import NDArray

from trtllm_backends.openvino_genai.guide_compiler import (
    GuideCompiler,
    find_model,
    generation_config,
    load_vocabulary,
    loadable,
)
from trtllm_backends.tensors import ParameterError, Parameters, boolean, positive
from trtllm_backends.token_model.request import (
    PROMPT_LOG_PROBS,
    TOP_LOG_PROBS,
    ModelLimits,
    TensorRequest,
)
from trtllm_truss.engines.cpu import KV_BLOCK_TOKENS
from trtllm_truss.requests import Guide


@dataclass(frozen=True)
class EngineSettings:
    """Settings from config.pbtxt, with TensorRT-LLM's meanings.

    Attributes:
        max_batch_size: maximum running requests; others wait.
        kv_cache_tokens: size of the KV cache; None lets it grow as needed.
        prefix_caching: reuse the KV cache of earlier prompts with the same prefix.
        chunked_context: process long prompts in chunks, between the steps of running requests.
        evict: admit requests that may not fit together; some are later recomputed.
        cancellation_check_s: interval of checks for cancelled requests, with few requests.
        response_interval_s: longest time to collect a stream's tokens when there are many streams.
        ignored: keys that were set but have no meaning on a CPU.
    """

    model_folder: Path
    max_batch_size: int
    max_beam_width: int = 1
    kv_cache_tokens: int | None = None
    prefix_caching: bool = True
    chunked_context: bool = True
    evict: bool = False
    exclude_input_in_output: bool = False
    normalize_log_probs: bool = True
    cancellation_check_s: float = 0.1
    response_interval_s: float = 0.24
    ignored: tuple[str, ...] = ()


def read_settings(config: Mapping[str, Any]) -> EngineSettings:
    """Read a model's configuration, the JSON that Triton passes to Python backends.

    Raises:
        ParameterError: a parameter is missing or has an invalid value.
    """
    parameters = Parameters(config)
    folder = parameters.get("gpt_model_path", Path, Path())
    if folder == Path():
        raise ParameterError("Parameter gpt_model_path must name the engine folder.")
    return EngineSettings(
        model_folder=folder,
        max_batch_size=max(1, int(config["max_batch_size"])),
        max_beam_width=parameters.get("max_beam_width", positive, 1),
        kv_cache_tokens=parameters.get("max_tokens_in_paged_kv_cache", positive, None),
        prefix_caching=parameters.get("enable_kv_cache_reuse", boolean, True),
        chunked_context=parameters.get("enable_chunked_context", boolean, True),
        evict=parameters.get("batch_scheduler_policy", _policy, False),
        exclude_input_in_output=parameters.get("exclude_input_in_output", boolean, False),
        normalize_log_probs=parameters.get("normalize_log_probs", boolean, True),
        cancellation_check_s=parameters.get("cancellation_check_period_ms", positive, 100) / 1000,
        ignored=parameters.unread,  # must stay last: lists the keys not read above
    )


def _policy(text: str) -> bool:
    return {"guaranteed_no_evict": False, "max_utilization": True}[text]


PREFILL_TOKENS = 256
"""Maximum prompt tokens per step with chunked context; limits the step's duration."""

PLUGIN_PROPERTIES = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "ENABLE_CPU_PINNING": "NO",
}
"""OpenVINO defaults to bf16 on CPUs that support it, and to an 8-bit KV cache.

Rounding would then depend on concurrent requests and on the cache, and responses to one seed, or of
greedy decoding, would vary. f32 is as fast here.

By default OpenVINO also pins each thread to a core, the same ones in every process, whatever else
runs there: two engines with one thread each would share one of two cores."""

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Limits the engine's threads; OpenVINO itself, built with TBB, ignores it and uses all cores."""

_COMPANION_PROMPT = np.zeros((1, 2), np.int64)
_COMPANION_BLOCKS = 4
_COMPANION_TOKENS = _COMPANION_BLOCKS * KV_BLOCK_TOKENS - _COMPANION_PROMPT.size

logger = logging.getLogger(__name__)

_RUNNING = openvino_genai.GenerationStatus.RUNNING
_SOME_GUIDE = Guide("regex", "a")


def plugin_properties() -> dict[str, str]:
    """Return the properties of OpenVINO's CPU plugin."""
    threads = os.environ.get(THREADS_VARIABLE, "")
    limit = {"INFERENCE_NUM_THREADS": threads} if threads.isdecimal() and int(threads) else {}
    return PLUGIN_PROPERTIES | limit


class _SignalStack(ctypes.Structure):
    """``stack_t`` of sigaltstack(2)."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def _same_signal_stack() -> Iterator[None]:
    """Restore the stack of the thread's signal handlers.

    OpenVINO sets one for the thread that loads its plugin, and frees it in the thread that drops it
    (``SigAltStackSetup`` of src/plugins/intel_cpu/src/sigstack_manager.cpp, 2026.4). From then on,
    a signal to the first thread was a segmentation fault.
    """
    before = _SignalStack()
    library = ctypes.CDLL(None)
    is_known = library.sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if is_known:
            library.sigaltstack(ctypes.byref(before), None)


class GenAiEngine:
    """A loaded model. All methods except `compile_guide` belong to the scheduler's thread.

    With quantized weights, OpenVINO 2026.4 multiplies a single row with another kernel than several
    rows, with different rounding, so the output would depend on concurrent requests. A companion, a
    request whose tokens nobody reads, adds a row where there may be only one, for a fifth to a
    third of the CPU time per token, unless nobody can request the same output again.
    (`DYNAMIC_QUANTIZATION_GROUP_SIZE: 0` has the same effect at a cost of 40 % with one request and
    120 % with eight.)

    A step holds Python's global lock throughout, so other threads run between steps.

    Attributes:
        path: the GGUF file, or the folder of the OpenVINO IR.
        keeps_prompts: a later request reuses what `read_ahead` has processed.

    Raises:
        ModelFilesError: the engine folder does not contain a model.
        RuntimeError: OpenVINO cannot load it.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._files = find_model(settings.model_folder)
        self.path = self._files.path
        self._ids = itertools.count()
        blocks = _kv_blocks(settings.kv_cache_tokens)
        self.limits = ModelLimits(
            context_length=self._files.context_length,
            vocab_size=self._files.vocab_size,
            kv_cache_tokens=blocks * KV_BLOCK_TOKENS or None,
            max_beam_width=settings.max_beam_width,
            exclude_input_in_output=settings.exclude_input_in_output,
            served=frozenset((TOP_LOG_PROBS, PROMPT_LOG_PROBS)),
        )
        self._companion: openvino_genai.GenerationHandle | None = None
        self._pipeline: openvino_genai.ContinuousBatchingPipeline
        self.keeps_prompts = settings.prefix_caching and settings.chunked_context
        self._load()

    def add(self, request: TensorRequest) -> openvino_genai.GenerationHandle:
        """Add a request to the next step.

        The pipeline's id is a counter: two live requests with one id would break the pipeline.
        """
        return self._add(request.prompt, generation_config(request))

    def read_ahead(self, prompt: NDArray[np.int64]) -> openvino_genai.GenerationHandle:
        """Process the start of a prompt into the prefix cache, from the next step on.

        Args:
            prompt: token ids, INT64 [n], n > 0.
        """
        return self._add(prompt, _tokens(1))

    def cached_tokens(self, prompt: NDArray[np.int64]) -> int:
        """Measure how much of a prompt is in the prefix cache; no request may be running.

        GenAI counts the blocks in use at each step. A request that was cancelled before its first
        step holds the blocks it found, and is not computed. The shortest prefix that holds as many
        as the whole prompt is what is cached. Source: `restore_cached_blocks` and `schedule` in
        src/cpp/src/continuous_batching of openvinotoolkit/openvino.genai, 2026.3.

        Args:
            prompt: token ids, INT64 [n], n > 0.

        Raises:
            RuntimeError: as from `step`.
        """
        if not (self._settings.prefix_caching and self._has_read):
            return 0
        self.rest()
        usage = self._found(prompt)
        if not usage:
            return 0
        low, high = 1, len(prompt)
        while low < high:
            middle = (low + high) // 2
            if self._found(prompt[:middle]) < usage:
                low = middle + 1
            else:
                high = middle
        return min(low, len(prompt) - 1)  # the last token is always computed

    def _found(self, prompt: NDArray[np.int64]) -> float:
        """Return the share of the KV cache, in percent, that the cached part of a prompt takes."""
        self._add(prompt, _tokens(1)).cancel()
        self._pipeline.step()
        return float(self._pipeline.get_metrics().cache_usage)

    def step(self, *, accompanied: bool = True) -> None:
        """Generate one token for every request, or process a part of some prompts.

        Args:
            accompanied: add the companion; needed for output that must not depend on other
                requests, unless two or more requests run.

        Raises:
            RuntimeError: the pipeline failed; `reload` before the next step.
        """
        if accompanied:
            self._accompany()
        elif self._companion is not None:
            self._companion.cancel()
            self._companion = None
        self._pipeline.step()
        self._has_read = True

    def rest(self) -> None:
        """Free the companion's memory; call it when no request is running.

        Raises:
            RuntimeError: as from `step`.
        """
        if self._companion is not None:
            self.step(accompanied=False)

    def reload(self) -> None:
        """Replace a failed pipeline; the handles of the old one are dead.

        Raises:
            RuntimeError: OpenVINO cannot load the model again.
        """
        del self._pipeline
        self._load()

    def compile_guide(self, guide: Guide) -> None:
        """Compile a checked guide into the pipeline's cache; callable from any thread.

        No request with a guide may reach its first token meanwhile; see `GuideCompiler`.

        Raises:
            RuntimeError: the guide is invalid.
        """
        self._compile(guide, 1, lambda: None)

    def forget_guides(self) -> None:
        """Free the cache of compiled guides; running requests keep theirs.

        GenAI replaces the cache when the number of logits changes.

        Raises:
            RuntimeError: OpenVINO failed.
        """
        tokenizer = self._pipeline.get_tokenizer()
        other = GuideCompiler(tokenizer, self.limits.vocab_size + 1)
        for compile_guide in (other, self._compile):
            compile_guide(_SOME_GUIDE, 1, lambda: None)
        del other, compile_guide
        return_free_memory()

    def kv_blocks(self, request: TensorRequest) -> int:
        """Return the maximum number of KV cache blocks that a request can hold."""
        beams = request.sampling.beam_width
        return beams * _kv_blocks(request.kv_cache_tokens // beams)

    def _accompany(self) -> None:
        """Add the companion if there is none."""
        if self._companion is None or self._companion.get_status() != _RUNNING:
            self._companion = self._add(_COMPANION_PROMPT, _tokens(_COMPANION_TOKENS))

    def _add(
        self, prompt: NDArray[np.int64], config: openvino_genai.GenerationConfig
    ) -> openvino_genai.GenerationHandle:
        tensor = openvino.Tensor(prompt.reshape(1, -1))
        return self._pipeline.add_request(next(self._ids), tensor, config)

    @_same_signal_stack()
    def _load(self) -> None:
        started = time.monotonic()
        self._companion = None
        self._has_read = False
        tokenizer = load_vocabulary(self._files.path)
        with loadable(self._files.path) as path:
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                path, tokenizer, self._scheduler_config(), "CPU", **plugin_properties()
            )
        self._compile = GuideCompiler(tokenizer, self.limits.vocab_size)
        # The first guide creates the cache, which threads then share.
        self._compile(_SOME_GUIDE, 1, lambda: None)
        seconds = time.monotonic() - started
        logger.info("loaded %s in %.1f s", self._files.path.name, seconds)

    def _scheduler_config(self) -> openvino_genai.SchedulerConfig:
        settings = self._settings
        config = openvino_genai.SchedulerConfig()
        blocks = _kv_blocks(settings.kv_cache_tokens)
        config.num_kv_blocks = blocks and blocks + _COMPANION_BLOCKS  # 0: grows as needed
        config.enable_prefix_caching = settings.prefix_caching
        config.dynamic_split_fuse = settings.chunked_context
        config.max_num_seqs = settings.max_batch_size + 2  # a prompt read ahead, the companion
        prompt_tokens = PREFILL_TOKENS if settings.chunked_context else self._files.context_length
        prompt_tokens += _COMPANION_PROMPT.size
        config.max_num_batched_tokens = max(prompt_tokens, config.max_num_seqs)
        return config


def return_free_memory() -> None:
    """Return freed memory that the C library keeps: half of the guides' on two cores."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _tokens(count: int) -> openvino_genai.GenerationConfig:
    return openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True)


def _kv_blocks(tokens: int | None) -> int:
    return -(-tokens // KV_BLOCK_TOKENS) if tokens else 0
