"""``model_metadata.runtime`` as the ``tensorrt_llm`` backend would read it.

Values there are typed by YAML or written as the strings of a ``config.pbtxt``; both mean the same,
and a blank string is a value that is not set.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_truss.errors import SettingsError

RuntimeValues = Mapping[str, bool | int | float | str | None]

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""A boolean as the backend reads it, in lower case."""


def flag(runtime: RuntimeValues, name: str) -> bool | None:
    """A boolean; None if it is not set.

    Raises:
        SettingsError: it is something else.
    """
    value = _given(runtime, name)
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in BOOLEANS:
        raise _wrong(name, value, "true or false")
    return BOOLEANS[word]


def whole_number(runtime: RuntimeValues, name: str) -> int | None:
    """A whole number from 1; None if it is not set.

    Raises:
        SettingsError: it is something else.
    """
    value = _given(runtime, name)
    if value is None:
        return None
    number = None if isinstance(value, bool) else _integer(str(value))
    if number is None or number < 1:
        raise _wrong(name, value, "a whole number, at least 1")
    return number


def whole_numbers(runtime: RuntimeValues, name: str) -> tuple[int, ...]:
    """Whole numbers, comma-separated or a single one; empty if it is not set.

    Raises:
        SettingsError: it is something else.
    """
    value = _given(runtime, name)
    if value is None:
        return ()
    numbers = [_integer(item) for item in str(value).split(",")]
    if isinstance(value, bool) or any(number is None or number < 0 for number in numbers):
        raise _wrong(name, value, "whole numbers with commas between them")
    return tuple(number for number in numbers if number is not None)


def fraction(runtime: RuntimeValues, name: str) -> float | None:
    """A number above 0 and below 1; None if it is not set.

    Raises:
        SettingsError: it is something else.
    """
    value = _given(runtime, name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or not 0 < number < 1:
        raise _wrong(name, value, "above 0 and below 1")
    return number


def _given(runtime: RuntimeValues, name: str) -> bool | int | float | str | None:
    value = runtime.get(name)
    return None if value == "" else value


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _wrong(name: str, value: object, wanted: str) -> SettingsError:
    return SettingsError(
        f"config.yaml: model_metadata.runtime.{name} is {value!r}; it must be {wanted}."
    )
