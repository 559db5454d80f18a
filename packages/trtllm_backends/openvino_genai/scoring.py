"""Compute log probabilities of alternatives and of prompts, which the pipeline does not report.

OpenVINO GenAI 2026.4 returns the log probability of the generated token only: ``logprobs`` above 1
counts as 1 (``GenerationConfig`` of src/cpp/include/openvino/genai/generation_config.hpp in
openvinotoolkit/openvino.genai). A request that needs more is therefore processed a second time, by
a copy of the model whose last layer returns the likeliest tokens instead of all logits. The copy is
loaded for the first such request and dropped after a while without one.

The values are the model's, before penalties, guides and temperature. The pipeline rounds
activations to 8 bits, with which SmolLM2's values would differ by up to 0.5 depending on how a text
is divided into parts. The copy does not round them, and its values differ by less than 0.0001.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import openvino
import openvino_genai
from openvino import opset13

from trtllm_backends.openvino_genai.engine import plugin_properties, return_free_memory
from trtllm_backends.openvino_genai.guide_compiler import load_vocabulary
from trtllm_backends.openvino_genai.guided import HEARTBEAT_INTERVAL_S, NICENESS, Arrival
from trtllm_backends.token_model.request import (
    MAX_TOP_LOG_PROBS,
    PROMPT_LOG_PROBS,
    TOP_LOG_PROBS,
    TensorRequest,
)
from trtllm_backends.token_model.responses import send_empty
from trtllm_truss.errors import InvalidRequest

Scored: TypeAlias = tuple[int, float, list[tuple[int, float]]]
"""A token, its log probability, and the likeliest tokens at its position, best first."""

_IR = "openvino_model.xml"
_EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_MEMORY_FACTOR = 4
"""Memory of the copy relative to the size of its file; 3 was measured with SmolLM2's 4 bits."""
_KEPT_S = 600.0
_MIN_PART_TOKENS, _MAX_PART_TOKENS = 32, 128
"""Fewer cost almost as much: SmolLM2 takes 60 ms of CPU time for 5 tokens, and 190 ms for 64."""
_PART_S = 0.2
"""Target duration of a part, which a new request may have to wait for.

Determines the size of the next.
"""


def is_scored(request: TensorRequest) -> bool:
    """Return True for a request that needs the copy."""
    return request.top_log_probs > 0 or request.scores_prompt


def validate_scored(request: TensorRequest) -> None:
    """Refuse log probabilities that cannot be computed.

    Raises:
        InvalidRequest: beam search is requested, whose beams change their prefixes.
    """
    if is_scored(request) and request.sampling.beam_width > 1:
        name = TOP_LOG_PROBS if request.top_log_probs else PROMPT_LOG_PROBS
        raise InvalidRequest(
            f"{name} is not supported with beam_width {request.sampling.beam_width} by the CPU "
            "engine; leave one of them out."
        )


class Score:
    """The log probabilities of one request's tokens, computed part by part."""

    def __init__(self, model: openvino.CompiledModel, prompt: Iterable[int]) -> None:
        self._infer = model.create_infer_request()
        self._ids = list(prompt)
        self._read = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append generated tokens."""
        self._ids += tokens

    @property
    def unread(self) -> int:
        """Return the number of tokens that can be scored."""
        return len(self._ids) - 1 - self._read

    @property
    def place(self) -> int:
        """Return the position of the next token to score; the first token has no score."""
        return self._read + 1

    def advance(self, tokens: int) -> list[Scored]:
        """Score the next tokens.

        Raises:
            RuntimeError: OpenVINO failed.
        """
        begin, end = self._read, min(self._read + tokens, len(self._ids) - 1)
        if begin == end:
            return []
        self._read = end
        ids = np.array([self._ids[begin : end + 1]], np.int64)
        found = self._infer.infer(
            {
                "input_ids": ids[:, :-1],
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(begin, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
                "targets": ids[:, 1:, None],
            }
        )
        chosen, top, top_ids = (found[name][0].tolist() for name in _OUTPUTS)
        return [
            (token, log_prob, [*zip(top_here, values, strict=True)])
            for token, (log_prob,), top_here, values in zip(
                self._ids[begin + 1 : end + 1], chosen, top_ids, top, strict=True
            )
        ]


_OUTPUTS = ("chosen", "top", "top_ids")


class Scoring:
    """The copy of the model and the requests that wait for it; for the scheduler's thread.

    The requests scored at the same time hold at most one context of tokens. A part takes about
    `_PART_S`; if other requests are running, an equally long pause follows.

    Args:
        path: a GGUF file, or a folder with an OpenVINO IR.
        wake: called from another thread once the copy is loaded.
    """

    def __init__(
        self,
        path: Path,
        context_length: int,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._path = path
        self._context_length = context_length
        self._wake = wake
        self._arrivals: list[Arrival] = []
        self._loading: Future[openvino.CompiledModel] | None = None
        self._model: openvino.CompiledModel | None = None
        self._used_at = self._next_heartbeat = self._rests_until = 0.0
        self._part_tokens = _MIN_PART_TOKENS

    def takes(self, request: TensorRequest) -> bool:
        """Return True for a request that must wait for the copy."""
        return is_scored(request) and self._model is None

    def add(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if self._loading is None:
            self._loading = Future()
            self._loading.add_done_callback(lambda _: self._wake())
            threading.Thread(target=self._load, args=(self._loading,), daemon=True).start()

    @property
    def are_waiting(self) -> bool:
        return bool(self._arrivals)

    def advance(self) -> list[Arrival]:
        """Return the requests that waited for the copy once it is loaded.

        Fail them if loading failed.

        The others get an empty response from time to time, because the Truss treats silence as a
        hang.
        """
        now = self._clock()
        if self._loading is None or not self._loading.done():
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + HEARTBEAT_INTERVAL_S
                for arrival in self._arrivals:
                    if arrival.request.streaming:
                        send_empty(arrival.request, arrival.sender, final=False)
            return []
        loading, self._loading = self._loading, None
        arrivals, self._arrivals = self._arrivals, []
        error = loading.exception()
        if error is None:
            self._model, self._used_at = loading.result(), now
            return arrivals
        for arrival in arrivals:
            arrival.sender.fail(
                f"Log probabilities of alternatives are not available: {error}",
                caller_at_fault=isinstance(error, MemoryError),
            )
        return []

    def remove(self, chosen: Callable[[Arrival], bool]) -> list[Arrival]:
        removed = [arrival for arrival in self._arrivals if chosen(arrival)]
        self._arrivals = [arrival for arrival in self._arrivals if arrival not in removed]
        return removed

    def fits(self, request: TensorRequest, running: Iterable[TensorRequest]) -> bool:
        """Return True if a request may be scored next to the running ones."""
        held = sum(one.kv_cache_tokens for one in running if is_scored(one))
        return not held or held + request.kv_cache_tokens <= self._context_length

    def begin(self, request: TensorRequest) -> Score:
        assert self._model is not None, "the request waited for it"
        return Score(self._model, request.prompt.tolist())

    def is_due(self, *, others_run: bool) -> bool:
        return not others_run or self._clock() >= self._rests_until

    def part(self, compute: Callable[[int], None]) -> None:
        """Compute a part of a score.

        Args:
            compute: called with the maximum number of tokens.

        Raises:
            RuntimeError: OpenVINO failed.
        """
        began = self._clock()
        compute(self._part_tokens)
        self._used_at = self._clock()
        took_s = self._used_at - began
        self._rests_until = self._used_at + took_s
        tokens = int(self._part_tokens * _PART_S / max(took_s, 1e-3))
        self._part_tokens = min(max(tokens, _MIN_PART_TOKENS), _MAX_PART_TOKENS)

    def idle_s(self) -> float | None:
        """Return the time until the unused copy is dropped; None without a copy."""
        if self._model is None:
            return None
        return max(0.0, self._used_at + _KEPT_S - self._clock())

    def rest(self) -> None:
        """Drop the copy if it was not used for a while; call it when no request is running."""
        if self.idle_s() == 0:
            self._model = None
            return_free_memory()

    def _load(self, result: Future[openvino.CompiledModel]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            result.set_result(load_scoring_model(self._path))
        except Exception as error:  # noqa: BLE001 - reported by the scheduler
            result.set_exception(error)


def load_scoring_model(path: Path) -> openvino.CompiledModel:
    """Load the model from a GGUF file or an OpenVINO IR folder, for `Score`.

    Raises:
        MemoryError: it may not fit.
        RuntimeError: OpenVINO cannot load it.
    """
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    if (free := _free_bytes()) is not None and free < _MEMORY_FACTOR * size:
        raise MemoryError(
            f"a second copy of the model takes up to {_MEMORY_FACTOR * size >> 20} MiB of memory, "
            f"and {free >> 20} MiB are free."
        )
    with _ir(path) as file:
        core = openvino.Core()
        model = core.compile_model(
            _without_logits(core.read_model(file)), "CPU", plugin_properties() | _EXACT
        )
    Score(model, [0, 0, 0]).advance(2)  # packs the weights
    return model


@contextmanager
def _ir(path: Path) -> Iterator[Path]:
    """Provide a model as an OpenVINO IR, in a temporary folder if it is a GGUF file.

    With ``enable_save_ov_model``, GenAI writes a GGUF file's IR next to it before it looks for the
    device: ``create_from_gguf`` in src/cpp/src/gguf_utils/gguf_modeling.cpp. A separate process
    does this, since GenAI holds Python's lock meanwhile.

    Raises:
        RuntimeError: GenAI cannot read the file.
    """
    if path.is_dir():
        yield path / _IR
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, path.name)
        if os.access(path, os.W_OK):
            file.symlink_to(path.resolve())
        else:
            shutil.copyfile(path, file)  # as in `guide_compiler.loadable`
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if not (found := file.with_name(_IR)).exists():
            raise RuntimeError(f"the model cannot be converted: {done.stderr[-500:]}")
        yield found


def _without_logits(model: openvino.Model) -> openvino.Model:
    """Replace the logits, FP32 [1, n, vocabulary], with the outputs that a score needs.

    Returns:
        A model with an additional input `targets` INT64 [1, n, 1], and the outputs `chosen` FP32
        [1, n, 1], the log probabilities of the targets; `top` FP32 [1, n, k], the highest ones; and
        `top_ids` INT32 [1, n, k], their tokens.
    """
    logits = model.output("logits").node.input_value(0)
    size = logits.get_partial_shape()[2].get_length()
    targets = opset13.parameter([1, -1, 1], np.int64, name="targets")
    targets.output(0).set_names({"targets"})
    last = opset13.constant([-1], np.int64)
    highest = opset13.reduce_max(logits, last, keep_dims=True)
    exponents = opset13.exp(opset13.subtract(logits, highest))
    total = opset13.log(opset13.reduce_sum(exponents, last, keep_dims=True))
    total = opset13.add(highest, total)
    count = opset13.constant(min(MAX_TOP_LOG_PROBS, size), np.int32)
    top = opset13.topk(logits, count, -1, "max", "value", index_element_type="i32")
    chosen = opset13.gather_elements(logits, targets, 2)
    made = (opset13.subtract(chosen, total), opset13.subtract(top.output(0), total), top.output(1))
    results = [opset13.result(one) for one in made]
    for name, result in zip(_OUTPUTS, results, strict=True):
        result.output(0).set_names({name})
    inputs = [*model.get_parameters(), targets]
    return openvino.Model(results, model.get_sinks(), inputs, "scoring")


def _free_bytes() -> int | None:
    """Return the memory left on the machine and in the container; None if unknown."""
    found = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{n}").read_text()) for n in ("max", "current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        found.append(max(0, limit - used + int(stat["inactive_file"])))
    return min(found, default=None)


def _convert(path: Path) -> None:
    with suppress(RuntimeError):  # there is no such device
        openvino_genai.ContinuousBatchingPipeline(
            path,
            load_vocabulary(path),
            openvino_genai.SchedulerConfig(),
            "NONE",
            enable_save_ov_model=True,
        )


if __name__ == "__main__":
    _convert(Path(sys.argv[1]))
