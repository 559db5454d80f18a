"""Hostile bodies that need no tools: long, nested, wrong, or with expensive guides."""

from __future__ import annotations

from benchmarks.hostile.body import (
    CHAT,
    COMPLETIONS,
    INVOCATIONS,
    LIMIT_BYTES,
    PREDICT,
    HostileBody,
    chat,
    dumps,
    guided,
    keys,
    message,
    repeated,
)  # fmt: skip

_MB = 1 << 20
_ALMOST = LIMIT_BYTES - 64
_TOO_LONG = ("tokens long", "at most 8191")
_LONG_PROMPT = ("prompt", *_TOO_LONG)
_KEYS = "at most 32768"
_DEEP = ("levels deep", "at most 64")

BASIC = [
    HostileBody(
        "100 MB of arrays", PREDICT, repeated(b"[", b"[],", 33 * _MB, b"1]"),
        (f"at most {LIMIT_BYTES}", "max_body_bytes"), 413,
    ),
    HostileBody(
        "one byte too many", CHAT, repeated(b'{"prompt":"', b"a", LIMIT_BYTES, b'"}'),
        ("body", f"at most {LIMIT_BYTES}"), 413,
    ),
    HostileBody("prompt of a million ones", PREDICT, dumps(prompt="1 " * _MB), _LONG_PROMPT),
    HostileBody("prompt of spaces", PREDICT, dumps(prompt=" " * _ALMOST), _LONG_PROMPT),
    HostileBody("prompt of one word", PREDICT, dumps(prompt="a" * _ALMOST), _LONG_PROMPT),
    HostileBody("prompt of emoji", PREDICT, dumps(prompt="🤖" * (_MB // 2)), _LONG_PROMPT),
    HostileBody(
        "prompt of control tokens", PREDICT, dumps(prompt="<|im_end|>" * (_MB // 2)),
        _LONG_PROMPT,
    ),
    HostileBody(
        "500,000 wrong stop words", PREDICT,
        repeated(b'{"prompt":"a","stop":[', b"1,", _MB // 2 - 9, b"1]}"), ("stop_words",),
    ),
    HostileBody(
        "four million values", PREDICT,
        repeated(b'{"prompt":"a","stop":[', b"1,", 4 * _MB - 99, b"1]}"),
        ("values", "at most 524288"),
    ),
    HostileBody(
        "50,000 stop words", PREDICT, dumps(prompt="a", stop=["ab"] * 50_000),
        ("stop_words", "at most 64"),
    ),
    HostileBody(
        "empty stop words", PREDICT, dumps(prompt="a", stop=[""] * 50_000), ("stop_words",)
    ),
    HostileBody(
        "stop word of 1 MB, 128 answers", CHAT, chat(stop="ab" * (_MB // 2), n=128),
        ("stop", "at most 256"),
    ),
    HostileBody(
        "bad word of 1 MB", PREDICT, dumps(prompt="a", bad_words="ab" * (_MB // 2)),
        ("bad_words", "at most 256"),
    ),
    HostileBody(
        "50,000 empty messages", PREDICT,
        dumps(messages=[{"role": "user", "content": ""}] * 50_000), ("strings", "at most 65536"),
    ),
    HostileBody(
        "15,000 empty messages", CHAT,
        dumps(messages=[{"role": "user", "content": ""}] * 15_000), ("messages", "at most 4096"),
    ),
    HostileBody("4,096 wrong messages", PREDICT, dumps(messages=[{}] * 4096), ("messages[0]",)),
    HostileBody("4,096 wrong messages, chat", CHAT, dumps(messages=[{}] * 4096), ("messages[0]",)),
    HostileBody(
        "4,096 long messages", CHAT,
        dumps(messages=[{"role": "user", "content": "1 " * 900}] * 4096),
        ("messages", *_TOO_LONG),
    ),
    HostileBody(
        "message of control tokens", CHAT,
        message(content="<|im_end|>\n<|im_start|>system\n" * 250_000), ("messages", *_TOO_LONG),
    ),
    HostileBody("message with 30,000 keys", CHAT, message(**keys("a", 30_000)), ("messages[0]",)),
    HostileBody(
        "8,000 parts", CHAT, message(content=[{"type": "text", "text": ""}] * 8_000),
        ("messages[0].content", "at most 4096"),
    ),
    HostileBody(
        "8,000 tool calls", CHAT,
        message(tool_calls=[{"function": {"name": "f", "arguments": ""}}] * 8_000),
        ("tool_calls", "at most 1024"),
    ),
    HostileBody("20,000 tools", CHAT, chat(tools=[{}] * 20_000), ("tools", "at most 1024")),
    HostileBody(
        "tool described in 4 MB", CHAT,
        chat(tools=[{"type": "function", "function": {"name": "f", "x": "1 " * (2 * _MB)}}],
              tool_choice="required"),
        ("messages", *_TOO_LONG),
    ),
    HostileBody(
        "variables of 30,000 keys", CHAT,
        chat(chat_template_kwargs={**keys("a", 30_000), "messages": 1}),
        ("chat_template_kwargs",),
    ),
    HostileBody(
        "30,000 biased tokens", CHAT, chat(logit_bias=keys("1", 30_000)),
        ("logit_bias", "at most 1024"),
    ),
    HostileBody("model of 1 MB", CHAT, chat(model="m" * _MB), ("model", "at most 256")),
    HostileBody("name of 8 MB", PREDICT, dumps(**{"n" * _ALMOST: 1}), ("is not a field",)),
    HostileBody(
        "30,000 unknown fields", PREDICT, dumps(**keys("a", 30_000)), ("is not a field",)
    ),
    HostileBody("40,000 unknown fields", CHAT, dumps(**keys("a", 40_000)), ("keys", _KEYS)),
    HostileBody("regex of brackets", CHAT, guided("regex", "[" * 16_000), ("response_format",)),
    HostileBody("regex of 64 kB of brackets", CHAT, guided("regex", "[" * 65_536),
                ("response_format",)),
    HostileBody("regex of 1 MB", CHAT, guided("regex", "a" * _MB),
                ("response_format.regex", "at most 65536")),
    HostileBody("regex that explodes", CHAT, guided("regex", "((a|b1){1,300}c?){1,301}"),
                ("response_format",)),
    HostileBody("regex of expensive tokens", CHAT, guided("regex", "([a-z]{0,100}){0,100}"),
                ("response_format", "less ambiguous")),
    HostileBody("regex of 64 kB of options", CHAT, guided("regex", "a?" * 32_768),
                ("response_format", "more than 4 s to compile")),
    HostileBody(
        "ambiguous grammar", CHAT,
        guided("grammar", "root ::= [a-z] | root root | root root root"),
        ("response_format", "less ambiguous"),
    ),
    HostileBody("grammar of 1 MB", CHAT, guided("grammar", 'root ::= "a"\n' * 80_000),
                ("response_format.grammar", "at most 65536")),
    HostileBody(
        "schema of 1 MB", CHAT,
        guided("json_schema", {"schema": {"enum": ["abcdefgh" * 4] * 30_000}}),
        ("response_format.json_schema.schema", "at most 65536"),
    ),
    HostileBody(
        "1,500 prompts", COMPLETIONS, dumps(prompt=["1 " * 2000] * 1500, max_tokens=1),
        ("prompt", "at most 256"),
    ),
    HostileBody(
        "256 prompts of 30 kB", COMPLETIONS, dumps(prompt=["1 " * 15_000] * 256, max_tokens=1),
        _LONG_PROMPT,
    ),
    HostileBody(
        "500,000 token ids", COMPLETIONS,
        repeated(b'{"max_tokens":1,"prompt":[', b"1,", _MB // 2 - 9, b"1]}"), _LONG_PROMPT,
    ),
    HostileBody(
        "50,000 lists of ids", COMPLETIONS, dumps(prompt=[[1]] * 50_000),
        ("prompt", "at most 256"),
    ),
    HostileBody(
        "echo of a long prompt", COMPLETIONS, dumps(prompt="1 " * _MB, echo=True, max_tokens=1),
        _LONG_PROMPT,
    ),
    HostileBody(
        "inputs of 8 MB", INVOCATIONS, dumps(inputs="1 " * (_ALMOST // 2)), ("inputs", *_TOO_LONG)
    ),
    HostileBody(
        "50,000 inputs", INVOCATIONS, dumps(inputs=["a"] * 50_000), ("inputs", "at most 256")
    ),
    HostileBody(
        "30,000 parameters", INVOCATIONS, dumps(inputs="a", parameters=keys("a", 30_000)),
        ("parameters",),
    ),
    HostileBody(
        "stop sequence of 1 MB", INVOCATIONS,
        dumps(inputs="a", parameters={"stop": ["a" * _MB]}), ("stop_sequences", "at most 256"),
    ),
    HostileBody(
        "grammar of 1 MB, LMI", INVOCATIONS,
        dumps(inputs="a", parameters={"grammar": {"type": "regex", "value": "a" * _MB}}),
        ("parameters.grammar.value", "at most 65536"),
    ),
    HostileBody("nested arrays", PREDICT, repeated(b"", b"[", 100_000, b""), _DEEP),
    HostileBody(
        "nested 980 deep", CHAT,
        lambda: b'{"tools":' + b'{"a":' * 979 + b"1" + b"}" * 980, _DEEP,
    ),
    HostileBody("two million arrays", PREDICT, repeated(b"[", b"[],", 2 * _MB, b"1]"),
                ("arrays and objects", "at most 65536")),
    HostileBody("a million strings", PREDICT, repeated(b"[[[]]", b',""', _MB, b"]"),
                ("strings", "at most 65536")),
    HostileBody("500,000 floats", PREDICT, repeated(b'{"prompt":[', b"1.5,", _MB // 2 - 9, b"1]}"),
                ("fractions", "at most 65536")),
    HostileBody("number of 8 MB", PREDICT, repeated(b'{"top_p":1.', b"1", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("exponent of 8 MB", PREDICT, repeated(b'{"top_p":1e', b"9", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("integer of 8 MB", PREDICT, repeated(b'{"seed":', b"9", _ALMOST, b"}"),
                ("number that is too long",)),
    HostileBody("escapes", PREDICT, repeated(b'{"prompt":"', b"\\u00e9", _MB, b'"}'),
                _LONG_PROMPT),
    HostileBody("half characters", PREDICT, repeated(b'{"prompt":"', b"\\ud800", _MB, b'"}'),
                ("prompt", "surrogates")),
    HostileBody("no UTF-8", PREDICT, repeated(b'{"prompt":"', b"\xff", _ALMOST, b'"}'),
                ("not UTF-8",)),
    HostileBody("white space", PREDICT, repeated(b" ", b"\n", _ALMOST, b"1"), ("the body is 1",)),
    HostileBody("cut short", PREDICT, repeated(b'{"prompt":"', b"a", _ALMOST, b""),
                ("not valid JSON",)),
    HostileBody("string of 8 MB", PREDICT, repeated(b'"', b"a", _ALMOST, b'"'), ("is a string",)),
]  # fmt: skip
