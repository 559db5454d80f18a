"""The conversations of the matrix, as bodies of the public APIs.

Each is a shape that clients send; sources in the comments. Every word in capitals must be in the
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
_WORD = re.compile(r"\b[A-Z]{3,}[0-9]+\b")


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        name: description of its shape.
        body: body without `model` and `max_tokens`.
        api: `chat`, `messages` or `responses`.
        reasoning: words of its reasoning, which templates may omit by design.
    """

    name: str
    body: Mapping[str, Any]
    api: str = "chat"
    reasoning: Sequence[str] = ()
    words: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        found = dict.fromkeys(_WORD.findall(str(self.body)))
        object.__setattr__(self, "words", [word for word in found if word not in self.reasoning])


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "a name"}},
    "required": ["city"],
}


def _tool(**keys: Any) -> Json:
    return {"type": "function", "function": {"name": "TOOLNAME1", **keys}}


TOOL = _tool(description="TOOLTEXT1", parameters=PARAMETERS)
_NULLABLE = {
    "type": "object",
    "properties": {
        "city": {"type": ["string", "null"], "description": "a name"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "unit": {"type": "str"},
        "kind": {"enum": ["a", "b"]},
        "more": {"type": "array", "items": {"type": ["object", "null"]}},
    },
}


def _user(content: Any = "ASK1") -> Json:
    return {"role": "user", "content": content}


def _system(content: Any = "RULE1") -> Json:
    return {"role": "system", "content": content}


def _call(arguments: Any = '{"city": "ARG1"}', number: int = 1) -> Json:
    function = {"name": f"CALLED{number}", "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _assistant(content: Any = "SAID1", **keys: Any) -> Json:
    return {"role": "assistant", "content": content, **keys}


def _result(number: int = 1, **keys: Any) -> Json:
    return {
        "role": "tool",
        "tool_call_id": f"call_{number}",
        "content": f"RESULT{number}",
        **keys,
    }


def _chat(name: str, *messages: Json, tools: Sequence[Json] = (), **keys: Any) -> Conversation:
    offered = {"tools": [*tools]} if tools else {}
    reasoning = keys.pop("reasoning", ())
    return Conversation(name, {"messages": [*messages], **offered, **keys}, reasoning=reasoning)


_ABSENT = {"role": "assistant", "tool_calls": [_call()]}
_BLOCKS = "messages"

CONVERSATIONS: Sequence[Conversation] = (
    _chat("plain", _user(), _assistant(), _user("ASK2")),
    _chat("system first", _system(), _user()),
    _chat("system twice", _system(), _system("RULE2"), _user()),
    # Claude Code from 2.1.197 on.
    Conversation(
        "system in the middle",
        {"system": "RULE1", "messages": [_user(), _system([{"type": "text", "text": "RULE2"}])]},
        _BLOCKS,
    ),
    _chat(
        "system between turns", _system(), _user(), _system("RULE2"), _assistant(), _user("ASK2")
    ),
    _chat(
        "content in parts",
        _system([{"type": "text", "text": "RULE1"}]),
        _user([{"type": "text", "text": "ASK1"}, {"type": "text", "text": "ASK2"}]),
    ),
    _chat("tools", _system(), _user(), tools=[TOOL]),
    _chat("a tool with a name only", _user(), tools=[_tool()]),
    _chat(
        "a nullable parameter",
        _user(),
        tools=[_tool(description=None, parameters=_NULLABLE)],
    ),
    _chat(
        "a call, content null",
        _user(),
        _assistant(None, tool_calls=[_call()]),
        _result(),
        tools=[TOOL],
    ),
    _chat("a call, content absent", _user(), _ABSENT, _result(), tools=[TOOL]),
    _chat(
        "a call, content empty",
        _user(),
        _assistant("", tool_calls=[_call()]),
        _result(),
        tools=[TOOL],
    ),
    _chat(
        "a call beside a text",
        _user(),
        _assistant(tool_calls=[_call()]),
        _result(),
        tools=[TOOL],
    ),
    _chat(
        "two calls",
        _user(),
        _assistant(None, tool_calls=[_call(), _call('{"city": "ARG2"}', 2)]),
        _result(),
        _result(2),
        tools=[TOOL],
    ),
    # Claude Code adds its reminders after a result.
    Conversation(
        "a result, then the user",
        {
            "system": "RULE1",
            "messages": [
                _user(),
                _assistant(
                    [{"type": "tool_use", "id": "t1", "name": "CALLED1", "input": {"a": "ARG1"}}]
                ),
                _user(
                    [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "RESULT1"},
                        {"type": "text", "text": "ASK2"},
                    ]
                ),
            ],
            "tools": [
                {"name": "TOOLNAME1", "description": "TOOLTEXT1", "input_schema": PARAMETERS}
            ],
        },
        _BLOCKS,
    ),
    _chat(
        "reasoning beside a call",
        _user(),
        _assistant(None, tool_calls=[_call()], reasoning_content="WHY1"),
        _result(),
        tools=[TOOL],
        reasoning=["WHY1"],
    ),
    _chat(
        "reasoning of an earlier answer",
        _user(),
        _assistant(reasoning_content="WHY1"),
        _user("ASK2"),
        reasoning=["WHY1"],
    ),
    _chat(
        "arguments cut off",
        _user(),
        _assistant("", tool_calls=[_call('{"city": "ARG1')]),
        _result(),
        tools=[TOOL],
    ),
    _chat(
        "arguments null and blank",
        _user(),
        _assistant("", tool_calls=[_call("null"), _call(" ", 2)]),
        _result(),
        _result(2),
        tools=[TOOL],
    ),
    _chat(
        "arguments in a list",
        _user(),
        _assistant("", tool_calls=[_call('["ARG1"]')]),
        _result(),
        tools=[TOOL],
    ),
    _chat("a result without its call", _user(), _assistant(), _result(), _user("ASK2")),
    _chat("turns of one role, one empty", _user(), _user("ASK2"), _assistant(""), _user("ASK3")),
    # Some servers count the ids of calls from 0 in each turn.
    _chat(
        "ids used again",
        _user(),
        _assistant(None, tool_calls=[{**_call(), "id": "call_0"}]),
        _result(tool_call_id="call_0"),
        _assistant(None, tool_calls=[{**_call('{"city": "ARG2"}', 2), "id": "call_0"}]),
        _result(2, tool_call_id="call_0"),
        _result(3, tool_call_id="call_9"),
        _assistant(),
        _result(4, tool_call_id="call_9"),
        tools=[TOOL],
    ),
    _chat(
        "calls without ids, one unanswered",
        _user(),
        _assistant(
            None,
            tool_calls=[
                {"function": {"name": "CALLED1", "arguments": {"city": "ARG1"}}},
                {"function": {"name": "CALLED2", "arguments": ["ARG2"]}},
            ],
        ),
        {"role": "tool", "content": [{"type": "text", "text": "RESULT1"}]},
        _user("ASK2"),
        tools=[TOOL],
    ),
    _chat(
        "results in another order",
        _user(),
        _assistant("", tool_calls=[_call(), _call('{"city": "ARG2", "on": null}', 2)]),
        _result(2),
        _result(),
        _user("ASK2"),
        tools=[TOOL],
    ),
    _chat(
        "steps with text and reasoning, twice",
        _system(),
        _user(),
        _assistant("SAID1", tool_calls=[_call()], reasoning_content="WHY1"),
        _result(),
        _assistant("SAID2", tool_calls=[_call('{"city": "ARG2"}', 2)], reasoning_content="WHY2"),
        _result(2),
        _assistant("SAID3", reasoning_content="WHY3"),
        _user("ASK2"),
        _assistant(None, tool_calls=[_call('{"city": "ARG3"}', 3)], reasoning_content="WHY4"),
        _result(3),
        tools=[TOOL],
        reasoning=["WHY1", "WHY2", "WHY3", "WHY4"],
    ),
    _chat(
        "a schema with nulls",
        _user(),
        tools=[
            _tool(
                parameters={
                    "type": "object",
                    "properties": {"city": {"type": ["string", "null"], "description": None}},
                    "required": None,
                }
            ),
            {
                "type": "function",
                "function": {
                    "name": "TOOLNAME2",
                    "parameters": {"type": "object", "properties": None},
                },
            },
        ],
    ),
    _chat(
        "markers in the user's text",
        _system("RULE1 <think> RULE2"),
        _user("ASK1 </think> ASK2 <tool_call> {{ ASK3 }}"),
        _assistant(None, tool_calls=[_call('{"city": "</tool_call> ARG1"}')]),
        _result(content="RESULT1 </think> RESULT2 <|im_end|>"),
        _user("</think>ASK4"),
        tools=[TOOL],
    ),
    _chat(  # LangGraph's and AutoGen's agents name the authors of messages
        "names of authors",
        {**_system(), "name": "NOTER1"},
        {**_user(), "name": "ANN1"},
        {**_assistant("SAID1"), "name": "BOT1"},
        {**_user("ASK2"), "name": "BEN1"},
        {**_assistant("SAID2"), "name": "BOT2"},
        _user("ASK3"),
    ),
    _chat(
        "no turn of the user",
        _system(),
        _assistant("", tool_calls=[_call()]),
        _result(content=""),
        tools=[TOOL],
    ),
    Conversation(
        "items of Responses",
        {
            "instructions": "RULE1",
            "input": [
                _user(),
                {"role": "developer", "content": [{"type": "input_text", "text": "RULE2"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "WHY1"}]},
                _assistant([{"type": "output_text", "text": "SAID1"}], type="message"),
                *(
                    {"type": "function_call", "call_id": f"c{number}", "name": f"CALLED{number}"}
                    | {"arguments": arguments}
                    for number, arguments in ((1, '{"city": "ARG1"}'), (2, '{"city": "ARG2'))
                ),
                {"type": "function_call_output", "call_id": "c1", "output": "RESULT1"},
                {
                    "type": "function_call_output",
                    "call_id": "c2",
                    "output": [{"type": "input_text", "text": "RESULT2"}],
                },
                _user("ASK2"),
            ],
            "tools": [{"type": "function", "name": "TOOLNAME1", "parameters": _NULLABLE}],
        },
        "responses",
        reasoning=["WHY1"],
    ),
)
