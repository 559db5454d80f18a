"""Typed reading of one request's input tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.errors import InvalidRequest

D = TypeVar("D")


class Tensors:
    """Typed access to the input tensors of one request; an absent tensor reads as its default.

    Raises:
        InvalidRequest: from every reader of one value, when the tensor does not hold exactly one of
            the type asked for. The message names the tensor, and never holds a prompt.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    @classmethod
    def of(cls, request: Any) -> Tensors:
        """Read the inputs of Triton's request; strings are bytes in an array of objects."""
        return cls({tensor.name(): np.asarray(tensor.as_numpy()) for tensor in request.inputs()})

    def __iter__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._arrays.items())

    def array(self, name: str) -> NDArray[Any] | None:
        return self._arrays.get(name)

    def integer(self, name: str, default: D) -> int | D:
        value = self._only_value(name)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        """Return one finite number."""
        value = self._only_value(name)
        if value is None:
            return default
        if not math.isfinite(value):
            raise InvalidRequest(f"{name} is {value}; send a finite number.", param=name)
        # FP32 0.9 is 0.8999999761581421; seven digits are all that FP32 carries.
        return float(f"{float(value):.7g}")

    def flag(self, name: str, default: bool) -> bool:
        value = self._only_value(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """Return one UTF-8 string; empty if the tensor is absent."""
        value = self._only_value(name)
        return "" if value is None else _decoded(name, value)

    def texts(self, name: str) -> list[str]:
        """Return all UTF-8 strings of a tensor, in order; none if it is absent."""
        array = self._arrays.get(name)
        return [] if array is None else [_decoded(name, value) for value in array.ravel().tolist()]

    def _only_value(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            return None
        if array.size != 1:
            raise InvalidRequest(
                f"{name} has shape {list(np.shape(array))}; send exactly one value.", param=name
            )
        return array.item()


def _decoded(name: str, value: bytes) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8; send text.", param=name) from error
