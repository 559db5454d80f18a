"""Typed reading of `parameters` of config.pbtxt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trtllm_truss.literals import BOOLEANS

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
