"""Parse request bodies as JSON objects within limits, in addition to `serving.max_body_bytes`.

Each limit keeps the work of one request on the event loop below 100 ms.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate
from typing import Any, NoReturn

from trtllm_truss.errors import BodyTooLarge, InvalidRequest

MAX_NESTING = 64
"""Nesting of arrays and objects. Templates and encoders recurse deeper than the parser."""

MAX_CONTAINERS = 1 << 16
"""Arrays and objects in all."""

MAX_STRINGS = 1 << 16
"""Strings in all, keys included."""

MAX_KEYS = 1 << 15
"""Keys in all: each unknown one costs a kilobyte when rejected."""

MAX_VALUES = 1 << 19
"""Items in all, such as the token ids of prompts."""

MAX_FRACTIONS = 1 << 16
"""Points and exponents of numbers in all: such a number takes ten times as long as an integer."""

MAX_DIGITS = 128
"""Digits of a number: the time to read one grows with their square."""

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_TOOLS = 1024
MAX_TOOL_CALLS = 1024
MAX_ALL_TOOL_CALLS = 4096
MAX_PROMPTS = 256
MAX_BIASED_TOKENS = 1024

MAX_MODEL_CHARACTERS = 256
"""Length of the name that every event repeats."""

MAX_WORDS = 64
"""Stop words, and bad words."""

MAX_WORD_CHARACTERS = 256

MAX_GUIDE_CHARACTERS = 1 << 16
"""Length of a JSON schema, a regular expression or a grammar."""

MAX_TEMPLATE_VARIABLES_CHARACTERS = 1 << 16
"""Length of `chat_template_kwargs` as JSON."""

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)

_SHORT_BYTES = 1 << 15
"""A body of this length exceeds no count, and its longest numbers take a millisecond."""


def parse_json_object(raw: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse a request body, which must be a JSON object.

    Reject NaN and Infinity, which Python's parser accepts. Check size and shape before building
    any object.

    Args:
        raw: the body.
        max_bytes: `serving.max_body_bytes`.

    Raises:
        BodyTooLarge: it has more than `max_bytes`.
        InvalidRequest: it is not UTF-8, not JSON, not an object, or exceeds a limit.
    """
    if len(raw) > max_bytes:
        raise BodyTooLarge.beyond(max_bytes)
    if not raw.strip():
        raise InvalidRequest('the body is empty; send JSON such as {"prompt": "Hello"}.')
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 (byte {raw[error.start]:#04x} at position {error.start}); "
            "encode the JSON as UTF-8."
        ) from None
    _check_shape(raw)
    try:
        body = _decoder.decode(text)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply; send flat fields.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise InvalidRequest(f"the body holds a number that is too long: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(
            f'the body is {_kind(body)}; send a JSON object such as {{"prompt": "Hello"}}.'
        )
    return body


class Budget:
    """Limits on what is built of texts that hold JSON; all texts spent from one share them.

    Counts are exact for JSON; the parser rejects anything else.

    Args:
        where: place of the texts in the body, for errors.
        param: the field that holds them.
    """

    def __init__(self, where: str = "", param: str | None = None) -> None:
        self._where = where
        self._param = param
        self._spent: Counter[str] = Counter()

    def spend(self, raw: bytes) -> int:
        """Count what a text holds, before any object is built.

        Returns:
            Its nesting.

        Raises:
            InvalidRequest: the texts exceed a limit.
        """
        unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
        self._count("strings", unescaped.count(b'"') // 2, MAX_STRINGS)
        outside = b"".join(unescaped.split(b'"')[::2])
        brackets = outside.translate(None, _NOT_BRACKETS)
        self._count("keys", outside.count(b":"), MAX_KEYS)
        self._count("arrays and objects", len(brackets) // 2, MAX_CONTAINERS)
        self._count("values", outside.count(b","), MAX_VALUES)
        self._count("fractions and exponents", _fractions(outside), MAX_FRACTIONS)
        if _LONG_NUMBER in outside.translate(_DIGITS_AS_ZEROS):
            raise InvalidRequest(
                f"the body holds a number that is too long{self._where}; send at most "
                f"{MAX_DIGITS} digits.",
                param=self._param,
            )
        return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)

    def _count(self, unit: str, count: int, maximum: int) -> None:
        self._spent[unit] += count
        if self._spent[unit] > maximum:
            raise InvalidRequest(
                f"the body holds {self._spent[unit]} {unit}{self._where}; at most {maximum} are "
                "read. Send fewer.",
                param=self._param,
            )


def parse_json_text(text: str, budget: Budget) -> Any:
    """Parse a text of the body that is JSON itself.

    Args:
        text: the text.
        budget: shared by all such texts of the body.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
        InvalidRequest: the texts exceed a limit.
    """
    if budget.spend(text.encode(errors="surrogatepass")) > MAX_NESTING:
        raise ValueError("nested too deeply")
    return json.loads(text)


def _check_shape(raw: bytes) -> None:
    """Reject a body that would be expensive to parse and validate.

    Raises:
        InvalidRequest: the body exceeds a limit.
    """
    if len(raw) <= _SHORT_BYTES and raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return
    depth = Budget().spend(raw)
    if depth > MAX_NESTING:
        raise InvalidRequest(
            f"the body is nested {depth} levels deep; at most {MAX_NESTING} are read. Send "
            "flatter fields."
        )


def _fractions(outside: bytes) -> int:
    """Count the points and exponents of numbers; an `e` is also in true and false."""
    exponents = outside.count(b"e") + outside.count(b"E")
    words = outside.count(b"true") + outside.count(b"false")
    return outside.count(b".") + exponents - words


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body holds {name}, which is not JSON; send a finite number.")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return json.dumps(value)[:40]


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
