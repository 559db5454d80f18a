"""Typed reading of one request's input tensors, and of `parameters` of config.pbtxt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.literals import BOOLEANS

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


T = TypeVar("T")

_WITHOUT_EFFECT = frozenset({"gpt_model_type", "FORCE_CPU_ONLY_INPUT_TENSORS", "triton_backend"})
"""Keys of every config.pbtxt that have no effect on Python backends."""


class ParameterError(ValueError):
    """A parameter in config.pbtxt is missing or invalid."""


class Parameters:
    """The parameters that are set; an empty value or an unfilled `${name}` counts as unset.

    Args:
        config: a model's configuration, the JSON that Triton passes to Python backends.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._set = {k: v for k, v in given.items() if v and not v.startswith("${")}
        self._read: set[str] = set()

    def get(self, key: str, parse: Callable[[str], T], default: T) -> T:
        """Return a parsed value, or the default if the key is unset.

        Raises:
            ParameterError: the value is invalid.
        """
        self._read.add(key)
        if key not in self._set:
            return default
        try:
            return parse(self._set[key])
        except (ValueError, KeyError) as error:
            raise ParameterError(f"Parameter {key} cannot be {self._set[key]!r}.") from error

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(self._set.keys() - self._read - _WITHOUT_EFFECT))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def boolean(text: str) -> bool:
    return BOOLEANS[text.lower()]
