"""Sampling inputs of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING, RequestField, SamplingFields

ENGINE_DEFAULTS: dict[str, Any] = {row.attribute: row.engine_default for row in SAMPLING}
"""The defaults of TensorRT-LLM's C++ backend, by attributes of `Sampling`."""

_LIMITS = [row for row in SAMPLING if row.effect == "limit"]


@dataclass(slots=True)
class Sampling(SamplingFields[NoReturn]):
    """Sampling inputs, each with a value.

    Attributes:
        early_stopping: beam search ends as soon as `beam_width` beams have.
    """

    beam_width: int = 1
    early_stopping: bool = True

    @property
    def greedy(self) -> bool:
        """Return True for greedy decoding, TensorRT-LLM's choice without top_k and top_p too."""
        unlimited = not any(row.changes(getattr(self, row.attribute)) for row in _LIMITS)
        return unlimited or self.top_k == 1 or self.temperature == 0

    def chosen(self) -> dict[str, float]:
        """Return the values for one beam that change the choice of tokens.

        The libraries of the LLM API and of the CPU engine have the same names for them.
        """
        effects = {"penalty"} if self.greedy else {"penalty", "temperature", "limit"}
        return {
            row.attribute: value
            for row in SAMPLING
            if row.effect in effects and row.changes(value := getattr(self, row.attribute))
        }


def read_sampling(tensors: Tensors, max_beam_width: int, engine: str) -> Sampling:
    """Read the sampling inputs, by their newest names or older ones.

    Raises:
        InvalidRequest: a value is out of range, or beam search cannot honour it.
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
        if not row.with_beams and row.changes(value):
            raise InvalidRequest(
                f"{row.name} {value} is not supported with beam_width {sampling.beam_width} by "
                f"{engine}; leave one of them out."
            )
