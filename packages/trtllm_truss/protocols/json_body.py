"""Parse request bodies as JSON objects within limits."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, NoReturn

from trtllm_truss.errors import BodyTooLarge, InvalidRequest
from trtllm_truss.protocols import limits

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def parse_json_object(raw: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse a request body, which must be a JSON object.

    Reject NaN and Infinity, which Python's parser accepts. Check size and shape before building
    any object.

    Args:
        raw: the body.
        max_bytes: `serving.max_body_bytes`.

    Raises:
        BodyTooLarge: it has more than `max_bytes`.
        InvalidRequest: it is not UTF-8, not JSON, not an object, or exceeds one of `limits`.
    """
    if len(raw) > max_bytes:
        raise BodyTooLarge(
            f"the body has {len(raw)} bytes; at most {max_bytes} are read "
            "(serving.max_body_bytes). Send less."
        )
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


def _check_shape(raw: bytes) -> None:
    """Reject a body that would be expensive to parse and validate.

    Counts are exact for JSON; the parser rejects anything else.

    Raises:
        InvalidRequest: the body exceeds one of `limits`.
    """
    containers = raw.count(b"[") + raw.count(b"{")
    if containers <= limits.MAX_NESTING and raw.count(b",") <= limits.MAX_KEYS:
        return
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    _refuse_more("strings", unescaped.count(b'"') // 2, limits.MAX_STRINGS)
    outside = b"".join(unescaped.split(b'"')[::2])
    brackets = outside.translate(None, _NOT_BRACKETS)
    _refuse_more("keys", outside.count(b":"), limits.MAX_KEYS)
    _refuse_more("arrays and objects", len(brackets) // 2, limits.MAX_CONTAINERS)
    _refuse_more("values", outside.count(b","), limits.MAX_VALUES)
    depth = max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
    if depth > limits.MAX_NESTING:
        raise InvalidRequest(
            f"the body is nested {depth} levels deep; at most {limits.MAX_NESTING} are read. Send "
            "flatter fields."
        )


def _refuse_more(unit: str, count: int, maximum: int) -> None:
    if count > maximum:
        raise InvalidRequest(
            f"the body holds {count} {unit}; at most {maximum} are read. Send fewer."
        )


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body holds {name}, which is not JSON; send a finite number.")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return json.dumps(value)[:40]


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
