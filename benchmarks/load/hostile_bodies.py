"""Bodies that cost a server disproportionate time or memory, for every protocol.

The tests check each answer; `python -m benchmarks hostile` measures the delay of another client.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LIMIT_BYTES = 8 << 20
"""The default of `serving.max_body_bytes`."""

PREDICT, INVOCATIONS = "/v1/models/model:predict", "/invocations"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class HostileBody:
    """One request and the expected rejection.

    Attributes:
        name: unique.
        route: path below the server's address.
        make: creates the body.
        message: words of the error message, among them the field and the limit.
        status: of the response.
    """

    name: str
    route: str
    make: Callable[[], bytes]
    message: tuple[str, ...]
    status: int = 400


def _dumps(**fields: Any) -> Callable[[], bytes]:
    return lambda: json.dumps(fields).encode()


def _repeated(head: bytes, item: bytes, times: int, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + item * times + tail


def _keys(prefix: str, count: int) -> dict[str, int]:
    return {f"{prefix}{number}": 1 for number in range(count)}


def _chat(**fields: Any) -> Callable[[], bytes]:
    return _dumps(**{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields})


def _guided(kind: str, value: Any) -> Callable[[], bytes]:
    return _chat(response_format={"type": kind, kind: value})


def _message(**fields: Any) -> Callable[[], bytes]:
    return _dumps(messages=[{"role": "user", "content": "Hi", **fields}], max_tokens=1)


_MB = 1 << 20
_ALMOST = LIMIT_BYTES - 64
_TOO_LONG = ("tokens long", "at most 8191")
_LONG_PROMPT = ("prompt", *_TOO_LONG)
_KEYS = "at most 32768"
_DEEP = ("levels deep", "at most 64")

CORPUS = [
    HostileBody(
        "100 MB of arrays", PREDICT, _repeated(b"[", b"[],", 33 * _MB, b"1]"),
        (f"at most {LIMIT_BYTES}", "max_body_bytes"), 413,
    ),
    HostileBody(
        "one byte too many", CHAT, _repeated(b'{"prompt":"', b"a", LIMIT_BYTES, b'"}'),
        ("body", f"at most {LIMIT_BYTES}"), 413,
    ),
    HostileBody("prompt of a million ones", PREDICT, _dumps(prompt="1 " * _MB), _LONG_PROMPT),
    HostileBody("prompt of spaces", PREDICT, _dumps(prompt=" " * _ALMOST), _LONG_PROMPT),
    HostileBody("prompt of one word", PREDICT, _dumps(prompt="a" * _ALMOST), _LONG_PROMPT),
    HostileBody("prompt of emoji", PREDICT, _dumps(prompt="🤖" * (_MB // 2)), _LONG_PROMPT),
    HostileBody(
        "prompt of control tokens", PREDICT, _dumps(prompt="<|im_end|>" * (_MB // 2)),
        _LONG_PROMPT,
    ),
    HostileBody(
        "500,000 wrong stop words", PREDICT,
        _repeated(b'{"prompt":"a","stop":[', b"1,", _MB // 2 - 9, b"1]}"), ("stop_words",),
    ),
    HostileBody(
        "four million values", PREDICT,
        _repeated(b'{"prompt":"a","stop":[', b"1,", 4 * _MB - 99, b"1]}"),
        ("values", "at most 524288"),
    ),
    HostileBody(
        "50,000 stop words", PREDICT, _dumps(prompt="a", stop=["ab"] * 50_000),
        ("stop_words", "at most 64"),
    ),
    HostileBody(
        "empty stop words", PREDICT, _dumps(prompt="a", stop=[""] * 50_000), ("stop_words",)
    ),
    HostileBody(
        "stop word of 1 MB, 128 answers", CHAT, _chat(stop="ab" * (_MB // 2), n=128),
        ("stop", "at most 256"),
    ),
    HostileBody(
        "bad word of 1 MB", PREDICT, _dumps(prompt="a", bad_words="ab" * (_MB // 2)),
        ("bad_words", "at most 256"),
    ),
    HostileBody(
        "50,000 empty messages", PREDICT,
        _dumps(messages=[{"role": "user", "content": ""}] * 50_000), ("strings", "at most 65536"),
    ),
    HostileBody(
        "15,000 empty messages", CHAT,
        _dumps(messages=[{"role": "user", "content": ""}] * 15_000), ("messages", "at most 4096"),
    ),
    HostileBody("4,096 wrong messages", PREDICT, _dumps(messages=[{}] * 4096), ("messages[0]",)),
    HostileBody("4,096 wrong messages, chat", CHAT, _dumps(messages=[{}] * 4096), ("messages[0]",)),
    HostileBody(
        "4,096 long messages", CHAT,
        _dumps(messages=[{"role": "user", "content": "1 " * 900}] * 4096),
        ("messages", *_TOO_LONG),
    ),
    HostileBody(
        "message of control tokens", CHAT,
        _message(content="<|im_end|>\n<|im_start|>system\n" * 250_000), ("messages", *_TOO_LONG),
    ),
    HostileBody("message with 30,000 keys", CHAT, _message(**_keys("a", 30_000)), ("messages[0]",)),
    HostileBody(
        "8,000 parts", CHAT, _message(content=[{"type": "text", "text": ""}] * 8_000),
        ("messages[0].content", "at most 4096"),
    ),
    HostileBody(
        "8,000 tool calls", CHAT,
        _message(tool_calls=[{"function": {"name": "f", "arguments": ""}}] * 8_000),
        ("tool_calls", "at most 1024"),
    ),
    HostileBody("20,000 tools", CHAT, _chat(tools=[{}] * 20_000), ("tools", "at most 1024")),
    HostileBody(
        "tool described in 4 MB", CHAT,
        _chat(tools=[{"type": "function", "function": {"name": "f", "x": "1 " * (2 * _MB)}}],
              tool_choice="required"),
        ("messages", *_TOO_LONG),
    ),
    HostileBody(
        "variables of 30,000 keys", CHAT,
        _chat(chat_template_kwargs={**_keys("a", 30_000), "messages": 1}),
        ("chat_template_kwargs",),
    ),
    HostileBody(
        "30,000 biased tokens", CHAT, _chat(logit_bias=_keys("1", 30_000)),
        ("logit_bias", "at most 1024"),
    ),
    HostileBody("model of 1 MB", CHAT, _chat(model="m" * _MB), ("model", "at most 256")),
    HostileBody("name of 8 MB", PREDICT, _dumps(**{"n" * _ALMOST: 1}), ("is not a field",)),
    HostileBody(
        "30,000 unknown fields", PREDICT, _dumps(**_keys("a", 30_000)), ("is not a field",)
    ),
    HostileBody("40,000 unknown fields", CHAT, _dumps(**_keys("a", 40_000)), ("keys", _KEYS)),
    HostileBody("regex of brackets", CHAT, _guided("regex", "[" * 16_000), ("response_format",)),
    HostileBody("regex of 64 kB of brackets", CHAT, _guided("regex", "[" * 65_536),
                ("response_format",)),
    HostileBody("regex of 1 MB", CHAT, _guided("regex", "a" * _MB),
                ("response_format.regex", "at most 65536")),
    HostileBody("regex that explodes", CHAT, _guided("regex", "((a|b1){1,300}c?){1,301}"),
                ("response_format",)),
    HostileBody("regex of expensive tokens", CHAT, _guided("regex", "([a-z]{0,100}){0,100}"),
                ("response_format", "less ambiguous")),
    HostileBody("regex of 64 kB of options", CHAT, _guided("regex", "a?" * 32_768),
                ("response_format", "more than 4 s to compile")),
    HostileBody(
        "ambiguous grammar", CHAT,
        _guided("grammar", "root ::= [a-z] | root root | root root root"),
        ("response_format", "less ambiguous"),
    ),
    HostileBody("grammar of 1 MB", CHAT, _guided("grammar", 'root ::= "a"\n' * 80_000),
                ("response_format.grammar", "at most 65536")),
    HostileBody(
        "schema of 1 MB", CHAT,
        _guided("json_schema", {"schema": {"enum": ["abcdefgh" * 4] * 30_000}}),
        ("response_format.json_schema.schema", "at most 65536"),
    ),
    HostileBody(
        "1,500 prompts", COMPLETIONS, _dumps(prompt=["1 " * 2000] * 1500, max_tokens=1),
        ("prompt", "at most 256"),
    ),
    HostileBody(
        "256 prompts of 30 kB", COMPLETIONS, _dumps(prompt=["1 " * 15_000] * 256, max_tokens=1),
        _LONG_PROMPT,
    ),
    HostileBody(
        "500,000 token ids", COMPLETIONS,
        _repeated(b'{"max_tokens":1,"prompt":[', b"1,", _MB // 2 - 9, b"1]}"), _LONG_PROMPT,
    ),
    HostileBody(
        "50,000 lists of ids", COMPLETIONS, _dumps(prompt=[[1]] * 50_000),
        ("prompt", "at most 256"),
    ),
    HostileBody(
        "echo of a long prompt", COMPLETIONS, _dumps(prompt="1 " * _MB, echo=True, max_tokens=1),
        _LONG_PROMPT,
    ),
    HostileBody(
        "inputs of 8 MB", INVOCATIONS, _dumps(inputs="1 " * (_ALMOST // 2)), ("inputs", *_TOO_LONG)
    ),
    HostileBody(
        "50,000 inputs", INVOCATIONS, _dumps(inputs=["a"] * 50_000), ("inputs", "at most 256")
    ),
    HostileBody(
        "30,000 parameters", INVOCATIONS, _dumps(inputs="a", parameters=_keys("a", 30_000)),
        ("parameters",),
    ),
    HostileBody(
        "stop sequence of 1 MB", INVOCATIONS,
        _dumps(inputs="a", parameters={"stop": ["a" * _MB]}), ("stop_sequences", "at most 256"),
    ),
    HostileBody(
        "grammar of 1 MB, LMI", INVOCATIONS,
        _dumps(inputs="a", parameters={"grammar": {"type": "regex", "value": "a" * _MB}}),
        ("parameters.grammar.value", "at most 65536"),
    ),
    HostileBody("nested arrays", PREDICT, _repeated(b"", b"[", 100_000, b""), _DEEP),
    HostileBody(
        "nested 980 deep", CHAT,
        lambda: b'{"tools":' + b'{"a":' * 979 + b"1" + b"}" * 980, _DEEP,
    ),
    HostileBody("two million arrays", PREDICT, _repeated(b"[", b"[],", 2 * _MB, b"1]"),
                ("arrays and objects", "at most 65536")),
    HostileBody("a million strings", PREDICT, _repeated(b"[[[]]", b',""', _MB, b"]"),
                ("strings", "at most 65536")),
    HostileBody("500,000 floats", PREDICT, _repeated(b'{"prompt":[', b"1.5,", _MB // 2 - 9, b"1]}"),
                ("fractions", "at most 65536")),
    HostileBody("number of 8 MB", PREDICT, _repeated(b'{"top_p":1.', b"1", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("exponent of 8 MB", PREDICT, _repeated(b'{"top_p":1e', b"9", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("integer of 8 MB", PREDICT, _repeated(b'{"seed":', b"9", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("escapes", PREDICT, _repeated(b'{"prompt":"', b"\\u00e9", _MB, b'"}'),
                _LONG_PROMPT),
    HostileBody("half characters", PREDICT, _repeated(b'{"prompt":"', b"\\ud800", _MB, b'"}'),
                ("prompt", "surrogates")),
    HostileBody("no UTF-8", PREDICT, _repeated(b'{"prompt":"', b"\xff", _ALMOST, b'"}'),
                ("not UTF-8",)),
    HostileBody("white space", PREDICT, _repeated(b" ", b"\n", _ALMOST, b"1"), ("the body is 1",)),
    HostileBody("cut short", PREDICT, _repeated(b'{"prompt":"', b"a", _ALMOST, b""),
                ("not valid JSON",)),
    HostileBody("string of 8 MB", PREDICT, _repeated(b'"', b"a", _ALMOST, b'"'), ("is a string",)),
]  # fmt: skip


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
