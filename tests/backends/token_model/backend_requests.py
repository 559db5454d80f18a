"""Requests to the CPU engine, and a caller that records responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.waiting import PATIENCE_S

from trtllm_backends.openvino_genai.scheduler import Scheduler
from trtllm_backends.tensors import Tensors
from trtllm_backends.token_model.request import ModelLimits, TensorRequest, read_request
from trtllm_backends.token_model.responses import Outputs

StartScheduler = Callable[..., Scheduler]

PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
END_ID = 2
LIMITS = ModelLimits(
    context_length=8192,
    vocab_size=49152,
    max_beam_width=4,
    served=frozenset(("num_top_logprobs", "return_prompt_logprobs")),
)
OUTPUTS = ("output_ids", "sequence_length")

_DTYPES: dict[type, type] = {bool: np.bool_, int: np.int32, float: np.float32}


def tensors(prompt: list[int] = PROMPT, output_len: int = 4, **inputs: Any) -> Tensors:
    """Return input tensors as Triton passes them: scalars as [1], others with a batch of 1."""
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([len(prompt)], np.int32),
        "request_output_len": np.array([output_len], np.int32),
    }
    for name, value in inputs.items():
        is_array = isinstance(value, np.ndarray)
        arrays[name] = value if is_array else np.array([value], _DTYPES[type(value)])
    return Tensors(arrays)


def request(
    prompt: list[int] = PROMPT,
    output_len: int = 4,
    *,
    request_id: str = "",
    outputs: tuple[str, ...] = OUTPUTS,
    limits: ModelLimits = LIMITS,
    is_seeded: bool = True,
    **inputs: Any,
) -> TensorRequest:
    given = tensors(prompt, output_len, **inputs)
    return read_request(request_id, given, outputs, limits, is_seeded=is_seeded)


def word_list(*words: list[int]) -> NDArray[np.int32]:
    """Return a [1, 2, n] list as NVIDIA's preprocessing model does."""
    flat = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    return np.array([[flat, ends + [-1] * (len(flat) - len(ends))]], np.int32)


class Caller:
    """A `ResponseSender` that records every response; `wait` returns after the final one."""

    def __init__(self) -> None:
        self.responses: list[Outputs] = []
        self.error: str | None = None
        self.caller_at_fault: bool | None = None
        self.cancelled = False
        self.finals = 0
        self._ended = threading.Event()
        self._grown = threading.Condition()

    def send(self, outputs: Outputs, *, final: bool) -> None:
        with self._grown:
            self.responses.append(outputs)
            self._grown.notify_all()
        if final:
            self.finish()

    def finish(self) -> None:
        self.finals += 1
        self._ended.set()

    def fail(self, message: str, *, caller_at_fault: bool) -> None:
        self.error = message
        self.caller_at_fault = caller_at_fault
        self.finish()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, within_s: float = PATIENCE_S) -> Caller:
        assert self._ended.wait(within_s), "no final response"
        return self

    def wait_for_responses(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.responses) >= count, PATIENCE_S)

    @property
    def tokens(self) -> list[int]:
        """The concatenated ids of all responses."""
        return [t for outputs in self.responses for t in outputs["output_ids"].ravel().tolist()]
