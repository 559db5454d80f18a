"""Sampling inputs of one request."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.backends.token_model.tensors import Tensors, UnsupportedRequest


@dataclass(frozen=True)
class Sampling:
    """Sampling inputs with the defaults of TensorRT-LLM's C++ backend.

    Attributes:
        temperature: divides the logits; 0 means greedy.
        top_k: number of likeliest tokens to draw from; 0 means unlimited.
        top_p: share of probability to draw from; 0 means unset.
        min_tokens: tokens to generate before the end token may be chosen.
        seed: of the random numbers; 0 by default, so equal requests get equal answers.
        length_penalty: beam search divides a beam's score by its length to this power.
        early_stopping: beam search ends as soon as `beam_width` beams have.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 1
    seed: int = 0
    beam_width: int = 1
    length_penalty: float = 0.0
    early_stopping: bool = True

    @property
    def greedy(self) -> bool:
        """Return True for greedy decoding, TensorRT-LLM's choice without top_k and top_p too."""
        unlimited = self.top_k == 0 and self.top_p == 0
        return unlimited or self.top_k == 1 or self.temperature == 0


def read_sampling(tensors: Tensors, max_beam_width: int, engine: str) -> Sampling:
    """Read the sampling inputs, by their newest names or those before TensorRT-LLM 0.20.

    Raises:
        UnsupportedRequest: a value is out of range, or beam search cannot honour it.
    """
    sampling = Sampling(
        temperature=tensors.number("temperature", 1.0),
        top_k=tensors.integer("runtime_top_k", 0),
        top_p=max(0.0, tensors.number("runtime_top_p", 0.0)),
        repetition_penalty=tensors.number("repetition_penalty", 1.0),
        presence_penalty=tensors.number("presence_penalty", 0.0),
        frequency_penalty=tensors.number("frequency_penalty", 0.0),
        min_tokens=tensors.integer("min_tokens", tensors.integer("min_length", 1)),
        seed=tensors.integer("seed", tensors.integer("random_seed", 0)),
        beam_width=tensors.integer("beam_width", 1),
        length_penalty=tensors.number("len_penalty", 0.0),
        early_stopping=tensors.flag("early_stopping", True),
    )
    _check_ranges(sampling)
    _check_beams(sampling, max_beam_width, engine)
    return sampling


def _check_ranges(sampling: Sampling) -> None:
    within = [
        ("temperature", sampling.temperature, 0, None),
        ("runtime_top_k", sampling.top_k, 0, 1024),
        ("runtime_top_p", sampling.top_p, 0, 1),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
        ("min_tokens", sampling.min_tokens, 0, None),
    ]
    for name, value, low, high in within:
        if value < low or (high is not None and value > high):
            wanted = f"from {low} to {high}" if high is not None else f"of {low} or more"
            raise UnsupportedRequest(f"{name} is {value}; send a value {wanted}.")
    if sampling.repetition_penalty <= 0:
        raise UnsupportedRequest(
            f"repetition_penalty is {sampling.repetition_penalty}; send a value above 0."
        )


def _check_beams(sampling: Sampling, max_beam_width: int, engine: str) -> None:
    if not 1 <= sampling.beam_width <= max_beam_width:
        raise UnsupportedRequest(
            f"Requested beam width {sampling.beam_width} is incorrect: beam_width must be from 1 "
            f"to max_beam_width, which is {max_beam_width}."
        )
    if sampling.beam_width == 1:
        return
    ignored_by_beam_search = [
        ("temperature", sampling.temperature, 1.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
        ("presence_penalty", sampling.presence_penalty, 0.0),
        ("frequency_penalty", sampling.frequency_penalty, 0.0),
        ("min_tokens", max(1, sampling.min_tokens), 1),
    ]
    for name, value, neutral in ignored_by_beam_search:
        if value != neutral:
            raise UnsupportedRequest(
                f"{name} {value} is not supported with beam_width {sampling.beam_width} by "
                f"{engine}; leave one of them out."
            )
