"""Typed reading of one request's input tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class UnsupportedRequest(ValueError):
    """A request that this engine cannot serve.

    The message names the tensor, its value and the remedy; it never holds a prompt.
    """


class Tensors:
    """Typed access to the input tensors of one request; an absent tensor reads as its default.

    Raises:
        UnsupportedRequest: from every reader, when the tensor does not hold exactly one value of
            the type asked for.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def __iter__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._arrays.items())

    def array(self, name: str) -> NDArray[Any] | None:
        return self._arrays.get(name)

    def integer(self, name: str, default: int) -> int:
        value = self._only_value(name)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        """Return one finite number."""
        value = self._only_value(name)
        if value is None:
            return default
        if not math.isfinite(value):
            raise UnsupportedRequest(f"{name} is {value}; send a finite number.")
        # FP32 0.9 is 0.8999999761581421; seven digits are all that FP32 carries.
        return float(f"{float(value):.7g}")

    def flag(self, name: str, default: bool) -> bool:
        value = self._only_value(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """Return one UTF-8 string; empty if the tensor is absent."""
        value = self._only_value(name)
        try:
            return "" if value is None else str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise UnsupportedRequest(f"{name} is not UTF-8; send text.") from error

    def _only_value(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            return None
        if array.size != 1:
            raise UnsupportedRequest(
                f"{name} has shape {list(np.shape(array))}; send exactly one value."
            )
        return array.item()
