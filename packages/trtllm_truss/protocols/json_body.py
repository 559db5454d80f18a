"""Bytes of a request become a JSON object, or a refusal that names what is wrong with them."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from trtllm_truss.errors import InvalidRequest


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a request body.

    Stricter than Python's reader where that one accepts what JSON has no name for: NaN and
    Infinity are refused.

    Raises:
        InvalidRequest: the bytes are not UTF-8, not JSON, or not an object.
    """
    if not raw.strip():
        raise InvalidRequest('the body is empty; send JSON such as {"prompt": "Hello"}.')
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 (byte {raw[error.start]:#04x} at position {error.start}); "
            "encode the JSON as UTF-8."
        ) from None
    try:
        body = json.loads(text, parse_constant=_refuse_constant)
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


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body holds {name}, which is not JSON; send a finite number.")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a text"
    return json.dumps(value)[:40]
