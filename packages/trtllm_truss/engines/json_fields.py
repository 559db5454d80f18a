"""Typed reading of a JSON object: every wrong value is one sentence that names its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from trtllm_truss.errors import ArtifactError

_MOST = 2**31 - 1  # the runtime reads sizes as 32-bit integers
_REQUIRED: Any = object()
_Default = TypeVar("_Default")


class Fields:
    """One JSON object and where it stands in its file.

    Every reader takes the field's name and, where the field may be absent or null, a default.
    Without a default an absent field is an `ArtifactError`, as a value of the wrong type always is.
    """

    def __init__(self, file: str, values: Mapping[str, Any], path: str = "") -> None:
        self._file = file
        self._values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def section(self, name: str) -> Fields:
        """The object called `name`."""
        value = self._value(name, _REQUIRED)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Fields(self._file, value, f"{self._path}{name}.")

    def mapping(self, name: str) -> Mapping[str, Any]:
        """The object called `name` as it stands; empty if absent."""
        value = self._value(name, {})
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return value

    def integer(
        self, name: str, default: _Default = _REQUIRED, *, least: int = 1, most: int = _MOST
    ) -> int | _Default:
        """A whole number in ``least..most``."""
        value = self._value(name, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def text(self, name: str, default: _Default = _REQUIRED) -> str | _Default:
        """A string that is not empty."""
        value = self._value(name, default)
        if value is default:
            return default
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "a text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def plugin(self, name: str) -> bool:
        """Whether a plugin is built in: null or false is no, a type such as ``float16`` is yes."""
        return self._value(name, False) is not False

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, none below 0; empty if absent."""
        value = self._value(name, ())
        if not isinstance(value, list | tuple) or not all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MOST
            for item in value
        ):
            raise self._wrong(name, value, "a list of whole numbers")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        value = self._value(name, ())
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of texts")
        return tuple(value)

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ArtifactError(
                f"{self._file} has no {self._path}{name}; it is not the one that TensorRT-LLM's "
                "builder writes beside the engine. Take the file from the build's output."
            )
        return default

    def _wrong(self, name: str, value: object, wanted: str) -> ArtifactError:
        return ArtifactError(
            f"{self._file}: {self._path}{name} is {_shown(value)}; it must be {wanted}. Take the "
            "file from the build's output."
        )


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
