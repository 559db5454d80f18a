"""Typed reading of one request's input tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.backends.openvino_genai.refusal import Refusal


class Tensors:
    """The input tensors of one request by name; an absent tensor reads as its default."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def __iter__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._arrays.items())

    def array(self, name: str) -> NDArray[Any] | None:
        """The tensor as it came, or None."""
        return self._arrays.get(name)

    def integer(self, name: str, default: int) -> int:
        """One integer.

        Raises:
            Refusal: the tensor holds more or less than one value.
        """
        value = self._only_value(name)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        """One finite number.

        Raises:
            Refusal: the tensor holds more or less than one value, or infinity, or no number.
        """
        value = self._only_value(name)
        if value is None:
            return default
        if not math.isfinite(value):
            raise Refusal(f"{name} is {value}; send a finite number.")
        # FP32 0.9 is 0.8999999761581421; seven digits are all that FP32 carries.
        return float(f"{float(value):.7g}")

    def flag(self, name: str, default: bool) -> bool:
        """One boolean.

        Raises:
            Refusal: the tensor holds more or less than one value.
        """
        value = self._only_value(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """One string; empty if the tensor is absent.

        Raises:
            Refusal: the tensor holds more or less than one value, or bytes that are not UTF-8.
        """
        value = self._only_value(name)
        try:
            return "" if value is None else str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(f"{name} is not UTF-8; send text.") from error

    def _only_value(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            return None
        if array.size != 1:
            raise Refusal(f"{name} has shape {list(np.shape(array))}; send exactly one value.")
        return array.item()
