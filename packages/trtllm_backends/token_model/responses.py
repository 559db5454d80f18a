"""A request between its first and its last response, and its responses.

Output tensors have the shapes of TensorRT-LLM's C++ backend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_backends.token_model.request import CACHED_TOKENS, StopWords, TensorRequest

Outputs = Mapping[str, NDArray[Any]]
"""Output tensors by name, each with its batch dimension of 1."""

_TOP = ("top_logprob_ids", "top_logprobs")
_PROMPT_TOP = ("prompt_top_ids", "prompt_top_logprobs")
_PADDING = -1
"""Pads the ids of shorter beams."""


class ResponseSender(Protocol):
    """Send the responses to one request. Never raises: the client may disconnect at any time."""

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """Send one response with data; nothing may follow the final one."""

    def finish(self) -> None:
        """Finish with a response without data."""

    def fail(self, message: str, *, caller_at_fault: bool) -> None: ...

    def is_cancelled(self) -> bool: ...


@dataclass
class Beam:
    """One sequence of generated tokens, without the end token, and their log probabilities.

    Attributes:
        top: for each token, the likeliest ids with their log probabilities, best first.
    """

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top: list[Sequence[tuple[int, float]]] = field(default_factory=list)


def build_outputs(
    request: TensorRequest,
    beams: Sequence[Beam],
    *,
    first_new: int = 0,
    normalize_log_probs: bool = True,
    cached_tokens: int | None = None,
    prompt: Beam | None = None,
) -> Outputs:
    """Build the output tensors of one response.

    Args:
        request: lists the tensors to build.
        beams: the sequences so far, the best one first.
        first_new: number of each beam's tokens that were sent before. Log probabilities of the
            tokens are always sent in full, as by the C++ backend; those of other tokens are not.
        normalize_log_probs: divide a beam's sum by its length to the power of `len_penalty`.
        cached_tokens: prompt tokens found in the KV cache; None omits the output.
        prompt: log probabilities of the prompt; None omits these outputs.

    Returns:
        output_ids INT32 [1, beams, n]; sequence_length INT32 [1, beams]; cum_log_probs FP32
        [1, beams]; output_log_probs FP32 [1, beams, n]; top_logprob_ids INT32 and top_logprobs FP32
        [1, beams, n, k]; prompt_logprobs FP32 [1, n], prompt_top_ids INT32 and prompt_top_logprobs
        FP32 [1, n, k]; num_input_tokens, num_output_tokens, batch_index, sequence_index,
        cached_tokens INT32 [1, 1]. Only those in `request.outputs` are built.
    """
    echoed = request.prompt.tolist() if request.echo_prompt else []
    rows = [echoed + beam.tokens[first_new:] for beam in beams]
    made: dict[str, NDArray[Any]] = {
        "output_ids": _rectangle(rows, _PADDING, np.int32),
        "sequence_length": np.array([[len(row) for row in rows]], np.int32),
    }
    of_prompt = {"prompt_logprobs", *_PROMPT_TOP}
    extras = request.outputs - made.keys() - {CACHED_TOKENS} - of_prompt
    if cached_tokens is not None and CACHED_TOKENS in request.outputs:
        made[CACHED_TOKENS] = np.array([[cached_tokens]], np.int32)
    if not extras.isdisjoint(_TOP):
        places = [beam.top[first_new:] for beam in beams]
        made |= dict(zip(_TOP, _top(places, request.top_log_probs), strict=True))
    if prompt is not None and request.scores_prompt:
        tops = (array[0] for array in _top([prompt.top], request.top_log_probs))
        made |= {n: a for n, a in zip(_PROMPT_TOP, tops, strict=True) if n in request.outputs}
        made["prompt_logprobs"] = np.array([prompt.log_probs], np.float32)
    for name in extras - made.keys():
        made[name] = _extra(name, request, beams, normalize_log_probs)
    return made


def send_empty(request: TensorRequest, sender: ResponseSender, *, final: bool = True) -> None:
    """Send a response without tokens.

    The C++ backend finishes a cancelled request with such a final one.
    """
    beams = [Beam() for _ in range(request.sampling.beam_width)]
    sender.send(build_outputs(replace(request, echo_prompt=False), beams), final=final)


def _extra(
    name: str, request: TensorRequest, beams: Sequence[Beam], normalize: bool
) -> NDArray[Any]:
    if name == "output_log_probs":
        return _rectangle([beam.log_probs for beam in beams], 0.0, np.float32)
    if name == "cum_log_probs":
        power = request.sampling.length_penalty if normalize and len(beams) > 1 else 0.0
        sums = [sum(beam.log_probs) / max(1, len(beam.tokens)) ** power for beam in beams]
        return np.array([sums], np.float32)
    counts = {
        "num_input_tokens": len(request.prompt),
        "num_output_tokens": sum(len(beam.tokens) for beam in beams),
        "batch_index": 0,
        "sequence_index": 0,
    }
    return np.array([[counts[name]]], np.int32)


def _top(
    places: Sequence[Sequence[Sequence[tuple[int, float]]]], count: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the likeliest tokens at each position of each beam; id -1 is padding."""
    shape = (1, len(places), max(map(len, places)), count)
    ids = np.full(shape, _PADDING, np.int32)
    log_probs = np.zeros(shape, np.float32)
    for beam, tops in enumerate(places):
        for place, top in enumerate(tops):
            for rank, (token, log_prob) in enumerate(top[:count]):
                ids[0, beam, place, rank] = token
                log_probs[0, beam, place, rank] = log_prob
    return ids, log_probs


def _rectangle(
    rows: Sequence[list[int]] | Sequence[list[float]], padding: float, dtype: type
) -> NDArray[Any]:
    longest = max(map(len, rows))
    return np.array([[[*row, *[padding] * (longest - len(row))] for row in rows]], dtype)


class RunningRequest:
    """The tokens of a request so far, and the number already sent.

    Attributes:
        beams: the sequences, the best one first.
        prompt: log probabilities of the prompt's tokens except the first; None if not requested.
        sent: number of tokens of the first beam that were sent.
    """

    def __init__(
        self,
        request: TensorRequest,
        sender: ResponseSender,
        *,
        normalize_log_probs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.sender = sender
        self.beams = [Beam() for _ in range(request.sampling.beam_width)]
        self.prompt = Beam() if request.scores_prompt else None
        self._normalize_log_probs = normalize_log_probs
        prompt = request.prompt.tolist()
        self._stop_words = [StopWords(request.stop_words, prompt) for _ in self.beams]
        self._is_first = True
        self.sent = 0
        self._sent_at = -math.inf
        self._clock = clock

    @property
    def generated(self) -> int:
        """Return the number of tokens so far, of the first beam."""
        return len(self.beams[0].tokens)

    def add(
        self,
        token: int,
        log_prob: float | None = None,
        top: Sequence[tuple[int, float]] = (),
        *,
        beam: int = 0,
    ) -> bool:
        """Add a token, unless it is the end token.

        Args:
            log_prob: None omits it.
            top: the likeliest ids with their log probabilities, best first.

        Returns:
            True if it finishes the beam.
        """
        if token == self.request.end_id:
            return True
        sequence = self.beams[beam]
        sequence.tokens.append(token)
        if log_prob is not None:
            sequence.log_probs.append(log_prob)
            sequence.top.append(top)
        return self._stop_words[beam].complete(token)

    def is_due(self, interval_s: float) -> bool:
        """Return True if a stream has waited long enough for its next response."""
        return self.request.streaming and self._clock() >= self._sent_at + interval_s

    def send(self, *, final: bool, cached_tokens: int | None = None) -> None:
        """Send the new tokens, or all generated tokens if not streaming.

        Args:
            final: this is the last response.
            cached_tokens: prompt tokens found in the KV cache; sent once.
        """
        sent, self.sent = self.sent, self.generated
        is_first, self._is_first = self._is_first, False
        self._sent_at = self._clock()
        outputs = build_outputs(
            self.request,
            self.beams,
            first_new=sent if self.request.streaming else 0,
            normalize_log_probs=self._normalize_log_probs,
            cached_tokens=cached_tokens if is_first else None,
            prompt=self.prompt if is_first else None,
        )
        self.sender.send(outputs, final=final)
