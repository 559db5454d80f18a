"""Hostile bodies around tools, conversations and texts that are parsed again."""

from __future__ import annotations

from typing import Any

from benchmarks.hostile.body import (
    CHAT,
    COMPLETIONS,
    INVOCATIONS,
    LIMIT_BYTES,
    MESSAGES,
    PREDICT,
    RESPONSES,
    HostileBody,
    chat,
    dumps,
    message,
)  # fmt: skip

_MB = 1 << 20
_TOO_LONG = ("tokens long", "at most 8191")
_MESSAGES, _INPUT = ("messages", *_TOO_LONG), ("input", *_TOO_LONG)
_ALLOWED = ("tool_choice.tools", "at most 1024")
_VARIABLES = ("chat_template_kwargs", "65536 characters")
_HI: dict[str, Any] = {"role": "user", "content": "Hi"}
_ARRAYS = '{"a":[' + "[]," * 2_600_000 + "[]]}"
_NEST = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"


def _function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _allowed(length: int) -> Any:
    """Name 28,000 allowed tools, none of which is one of the 1,024 until the last."""
    names = [f"{number:06d}".ljust(length, "x") for number in range(1024)]
    allowed = [{"name": names[-1]}] * 28_000
    return dumps(
        input="Hi",
        max_output_tokens=1,
        tools=[{"type": "function", "name": name} for name in names],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed},
    )


def _called(arguments: str) -> Any:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [_HI, {"role": "assistant", "tool_calls": [call]}, _HI]
    return dumps(messages=turns, max_tokens=1)


def _call_item(arguments: str) -> Any:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    return dumps(input=[_HI, call], max_output_tokens=1)


def _items(item: dict[str, Any]) -> Any:
    return dumps(input=[item] * 4096, max_output_tokens=1)


_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "1 " * 950}
_TOOL_MESSAGE = {"role": "tool", "tool_call_id": "t", "content": "1 " * 950}
_TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
_REASONING = {"type": "reasoning_text", "text": "1 " * 950}
_LONG_TOOL = {"type": "object", "properties": {"a": {"enum": list(range(500_000))}}}
_LITTER = [{"a": number} for number in range(30_000)]

TOOLS = [
    HostileBody("arguments of 2.6 million arrays", CHAT, _called(_ARRAYS), ("arguments",)),
    HostileBody("arguments nested 100,000 deep", CHAT, _called(_NEST), ("arguments",)),
    HostileBody("arguments of 2.6 million arrays, predict", PREDICT, _called(_ARRAYS),
                ("arguments",)),
    HostileBody("arguments of 2.6 million arrays, Responses", RESPONSES, _call_item(_ARRAYS),
                ("arguments",)),
    HostileBody("guided_json of 2.6 million arrays", CHAT, chat(guided_json=_ARRAYS),
                ("guided_json", "at most 65536")),
    HostileBody("guided_json nested 30,000 deep", CHAT,
                chat(guided_json='{"a":' + "[" * 30_000 + "]" * 30_000 + "}"), ("guided_json",)),
    HostileBody("structured_outputs of 2.6 million arrays", CHAT,
                chat(structured_outputs={"json": _ARRAYS}),
                ("structured_outputs.json", "at most 65536")),
    HostileBody("28,000 long allowed tools", RESPONSES, _allowed(254), _ALLOWED),
    HostileBody("28,000 short allowed tools", RESPONSES, _allowed(6), _ALLOWED),
    HostileBody(
        "1,000 tools of 7 kB", RESPONSES,
        dumps(input="Hi", max_output_tokens=1,
              tools=[{"type": "function", "name": f"f{n}", "description": "1 " * 3800}
                     for n in range(1000)]),
        _INPUT,
    ),
    HostileBody("4,096 items of the assistant", RESPONSES,
                _items({"role": "assistant", "content": "1 " * 980}), _INPUT),
    HostileBody("4,096 items of reasoning", RESPONSES,
                _items({"type": "reasoning", "content": [_REASONING]}), (), 200),
    HostileBody(
        "4,090 results of tools, Messages", MESSAGES,
        dumps(messages=[_HI, {"role": "assistant", "content": [_TOOL_USE]},
                        {"role": "user", "content": [_RESULT] * 4090}], max_tokens=1),
        _MESSAGES,
    ),
    HostileBody(
        "4,090 results of tools", CHAT,
        dumps(messages=[_HI, *[_TOOL_MESSAGE] * 4090], max_tokens=1),
        _MESSAGES,
    ),
    HostileBody("forced call of 500,000 options", CHAT,
                chat(tools=[_function("f", parameters=_LONG_TOOL)], tool_choice="required"),
                ("tools", "at most 65536")),
    HostileBody("tools of 60,000 strings", CHAT,
                chat(tools=[_function("f", parameters={"enum": ["1 " * 50] * 60_000})]), _MESSAGES,
                needs_tools=True),
    HostileBody("variables of 30,000 objects", CHAT,
                chat(chat_template_kwargs={"custom_tools": _LITTER}), _VARIABLES,
                needs_tools=True),
    HostileBody("variables of 60,000 strings", CHAT,
                chat(chat_template_kwargs={"custom_tools": ["1 " * 50] * 60_000}),
                _VARIABLES, needs_tools=True),
    HostileBody("variable of 8 MB", CHAT,
                chat(chat_template_kwargs={"date_string": "1 " * (LIMIT_BYTES // 2 - 200)}),
                _VARIABLES, needs_tools=True),
    HostileBody("message of 8 MB", CHAT, message(content="1 " * (LIMIT_BYTES // 2 - 200)),
                _MESSAGES, needs_tools=True),
    HostileBody("message of a thousand special tokens", CHAT,
                message(content="".join(f"<SPECIAL_{n}>" for n in range(1000)) * 550), _MESSAGES,
                needs_tools=True),
    HostileBody("arguments of 2.6 million arrays, template with tools", CHAT, _called(_ARRAYS),
                ("arguments",), needs_tools=True),
    HostileBody("4,096 items of reasoning, template with reasoning", RESPONSES,
                _items({"type": "reasoning", "content": [_REASONING]}), ("input",),
                needs_tools=True),
    HostileBody(
        "8 MB truncated to 2,147,483,647 tokens", COMPLETIONS,
        dumps(prompt="1 " * 3_900_000, truncate_prompt_tokens=2**31 - 1, max_tokens=1),
        ("prompt", *_TOO_LONG),
    ),
    HostileBody(
        "8 MB truncated to 2,147,483,647 tokens, LMI", INVOCATIONS,
        dumps(inputs="1 " * 3_900_000, parameters={"truncate": 2**31 - 1, "max_new_tokens": 1}),
        ("inputs", *_TOO_LONG),
    ),
    HostileBody(
        "8 MB of control tokens truncated to ten", CHAT,
        dumps(messages=[{"role": "user", "content": "<|im_end|>" * 790_000}],
              truncate_prompt_tokens=10, max_tokens=1),
        (), 200,
    ),
    HostileBody("no content", MESSAGES,
                dumps(messages=[{"role": "user", "content": []}], max_tokens=1),
                ("messages", "must be a list with some content")),
    HostileBody("half a character as a name", CHAT, chat(structured_outputs={"\ud800": 1}),
                ("structured_outputs",)),
    HostileBody("grammar without an end", CHAT,
                chat(response_format={"type": "grammar", "grammar": "root ::= root"}),
                ("response_format",)),
    HostileBody("schema without an end", CHAT, chat(guided_json={"$ref": "#"}), ("guided_json",)),
    HostileBody("regex with NUL", CHAT,
                chat(response_format={"type": "regex", "regex": "a\x00b"}), ("response_format",)),
    HostileBody("schema with an infinite minimum", CHAT,
                chat(guided_json='{"type":"number","minimum":-1e400}'), ("guided_json",)),
]  # fmt: skip
