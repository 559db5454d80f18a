"""Random large bodies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.hostile.body import CHAT, COMPLETIONS, INVOCATIONS, LIMIT_BYTES, PREDICT


def generated(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Generate random large bodies, from 100 kB to the limit, that no route accepts.

    Yields:
        The route and the body.
    """
    chance = random.Random(seed)
    for _ in range(count):
        size = int(100_000 * (LIMIT_BYTES / 100_000) ** chance.random()) - 128
        route, fields = chance.choice(_FIELDS)
        name = chance.choice(fields)
        rest = json.dumps(_VALID[route] | {name: None}).encode()
        payload = chance.choice(_PAYLOADS)(chance, size)
        yield route, rest.replace(f'"{name}": null'.encode(), f'"{name}": '.encode() + payload)


_VALID: dict[str, dict[str, Any]] = {
    PREDICT: {"prompt": "Hi", "max_tokens": 1},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    INVOCATIONS: {"inputs": "Hi", "parameters": {"max_new_tokens": 1}},
}
_FIELDS = [
    (PREDICT, ["prompt", "messages", "stop_words", "bad_words", "seed", "nonsense", "max_tokens"]),
    (COMPLETIONS, ["prompt", "stop", "logit_bias", "response_format", "suffix", "model"]),
    (CHAT, ["messages", "tools", "tool_choice", "chat_template_kwargs", "response_format", "stop"]),
    (INVOCATIONS, ["inputs", "parameters", "stream", "nonsense"]),
]


def _text(chance: random.Random, size: int) -> bytes:
    unit = chance.choice(["1 ", "a", " ", "é", "🤖", "<|im_end|>", '\\"', "word ", "{[", "\\\\"])
    return b'"' + unit.encode() * (size // len(unit.encode())) + b'"'


def _items(chance: random.Random, size: int) -> bytes:
    options = [b"1", b'"a"', b"[]", b"{}", b"null", b"1.5", b'{"role":"user","content":"a"}']
    item = chance.choice(options)
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def _members(chance: random.Random, size: int) -> bytes:
    return b"{" + b",".join(b'"%06d":1' % number for number in range(size // 11)) + b"}"


def _nested(chance: random.Random, size: int) -> bytes:
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    depth = size // (len(opening) + len(closing))
    return opening * depth + b"1" + closing * depth


def _digits(chance: random.Random, size: int) -> bytes:
    return chance.choice([b"", b"1.", b"0.", b"1e"]) + b"7" * size


def _noise(chance: random.Random, size: int) -> bytes:
    return chance.randbytes(size)


_PAYLOADS = [_text, _text, _items, _items, _members, _nested, _digits, _noise]
