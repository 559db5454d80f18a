"""Convert a conversation to the messages and tools for a chat template, in a given form."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from trtllm_truss.conversation import Turn
from trtllm_truss.conversation.form import Form

CallWriter = Callable[[str, str], str]
"""Writes a call as the model would: its function's name, and its arguments as JSON."""

_DESCRIPTION = """\
You can call these functions, each described by a JSON schema:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments exactly in this form:
{call}

The results follow in the next message. Answer directly if no function is needed."""

_SHORT_ID = re.compile(r"[0-9A-Za-z]{9}")
"""The ids in Mistral's templates."""

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")
"""Keys of reasoning, in the order of trial."""

EVERY: Literal["every"] = "every"
"""The option of a form that passes reasoning or functions in several places at once."""

_TURN_BREAK = "\n\n"


_TOOL_VARIABLES = {
    "variable": ("tools",),
    "xml_tools": ("xml_tools",),
    EVERY: ("tools", "xml_tools"),
}
"""The template's variables for functions, by the form's option."""


class Written(NamedTuple):
    """Arguments for a chat template.

    Attributes:
        variables: variables that contain the tools.
        template: `tool_use` for the template with that name, if the model has one.
    """

    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    template: str


def write_as_json(name: str, arguments: str) -> str:
    """Write a call as one JSON object."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def write(
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    form: Form,
    write_call: CallWriter = write_as_json,
) -> Written:
    """Write a conversation.

    Args:
        turns: the conversation, which is not modified.
        tools: OpenAI's descriptions of functions; None or empty for none.
        write_call: writes calls into the text if the form requires it.
    """
    written = identified(turns)
    if form.names == "text" and any("name" in turn for turn in written):
        written = _with_names_in_text(written)
    has_calls = any("tool_calls" in turn for turn in written)
    if has_calls or form.orphans == "user":
        written = _with_calls(written, form, write_call)
    if tools and form.tools == "text":
        written = _described(written, tools, write_call)
    if form.system != "anywhere":
        written = _with_system_first(written)
    if form.system == "user":
        written = _with_system_as_user(written)
    written = _in_order(written, form)
    ids = _new_ids(written, form.ids)
    messages = [_message(turn, form, ids) for turn in written]
    variables: dict[str, Any] = {"tools": [] if form.empty_tools else None}
    if tools and form.tools != "text":
        shown = [_shown_tool(tool, form) for tool in tools]
        variables |= dict.fromkeys(_TOOL_VARIABLES.get(form.tools, ()), shown)
        in_system = form.tools == EVERY and form.system != "user"
        if form.tools.startswith("system") or in_system:
            _tools_into_system(messages, shown, form)
    uses_tools = bool(tools) or (has_calls and form.tool_template == "calls")
    return Written(messages, variables, "tool_use" if uses_tools else "default")


def _with_calls(turns: list[Turn], form: Form, write_call: CallWriter) -> list[Turn]:
    """Write calls and results through the template, or as text."""
    if form.named_results:
        turns = _with_names(turns)
    if form.calls == "text":
        turns = _calls_as_text(turns, write_call)
        if form.results == "user":
            turns = _results_as_text(turns)
    elif form.orphans == "user":
        turns = _orphans_as_text(turns)
    return turns


def _in_order(turns: list[Turn], form: Form) -> list[Turn]:
    """Join, split, omit and add turns."""
    if form.drops_blank:
        turns = [turn for turn in turns if not _is_blank(turn)]
    if form.joins:
        turns = _joined(turns)
    if form.splits_text or form.one_call:
        turns = _split(turns, form)
    if form.after_result is not None:
        turns = _with_turns_after_results(turns, form.after_result)
    if form.opens_with_user is not None:
        turns = _opened_by_user(turns, form.opens_with_user)
    return turns


def has_text(turn: Mapping[str, Any]) -> bool:
    """Return True if a turn has a text that is not blank."""
    return bool((turn.get("content") or "").strip())


def _is_blank(turn: Turn) -> bool:
    return not (has_text(turn) or turn.get("tool_calls") or turn["role"] == "tool")


def identified(turns: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Copy turns, and give each call a unique id.

    Calls without an id or with a duplicate id get a new one; clients may count from `call_0` in
    each turn. A result belongs to the first unanswered call with its id in the preceding turn or,
    if it has no id, to the first unanswered one; otherwise to an earlier unanswered one with its
    id. Results without a call keep an id that no other one has.
    """
    copied = [dict(turn) for turn in turns]
    known: set[str] = set()
    own: dict[str, deque[str]] = {}
    unanswered: dict[str, None] = {}
    earlier: dict[str, list[str]] = {}
    for turn in copied:
        if turn["role"] == "tool":
            given = turn.get("tool_call_id")
            if given and given in own:
                ids = own[given]
                while len(ids) > 1 and ids[0] not in unanswered:
                    ids.popleft()
                turn["tool_call_id"] = ids[0]
                unanswered.pop(ids[0], None)
            elif not given and unanswered:
                turn["tool_call_id"] = id_ = next(iter(unanswered))
                del unanswered[id_]
            elif given:
                late = earlier.get(given)
                turn["tool_call_id"] = late.pop(0) if late else _unused(given, known)
            continue
        for given, ids in own.items():
            earlier.setdefault(given, []).extend(each for each in ids if each in unanswered)
        own, unanswered = {}, {}
        if calls := turn.get("tool_calls"):
            turn["tool_calls"] = calls = [*calls]
            for place, call in enumerate(calls):
                given = call.get("id") or ""
                id_ = _unused(given or f"call_{len(known)}", known)
                calls[place] = {**call, "id": id_}
                own.setdefault(given, deque()).append(id_)
                unanswered[id_] = None
    return copied


def _unused(id_: str, known: set[str]) -> str:
    """Return an id, or a new one if it is in use; mark it as used."""
    found, count = id_, len(known)
    while found in known:
        found = f"{id_}_{count}"
        count += 1
    known.add(found)
    return found


def find_calls(turns: Sequence[Mapping[str, Any]]) -> list[tuple[int, int] | None]:
    """Find the call of each turn that is a result.

    Args:
        turns: turns returned by `identified`.

    Returns:
        For each turn, the number of turns back to the call, and the call's position in its turn;
            None
        for turns that are not results, and for results that follow no turn with their call.
    """
    found: list[tuple[int, int] | None] = []
    calls: dict[str, tuple[int, int]] = {}
    for place, turn in enumerate(turns):
        if turn["role"] == "tool":
            found.append(calls.get(turn.get("tool_call_id", "")))
            continue
        calls = {call["id"]: (place, at) for at, call in enumerate(turn.get("tool_calls", ()))}
        found.append(None)
    return found


def needed_names(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each turn that only its key `name` contains; empty without.

    A result whose call has that name needs none, nor do assistant turns that all have the same
    name.

    Args:
        turns: turns returned by `identified`.
    """
    if not any("name" in turn for turn in turns):
        return [""] * len(turns)
    assistants = {turn.get("name") for turn in turns if turn["role"] == "assistant"}
    needed = []
    for turn, call in zip(turns, find_calls(turns), strict=True):
        name = turn.get("name") or ""
        if call is not None:
            place, at = call
            name = "" if turns[place]["tool_calls"][at]["function"]["name"] == name else name
        elif turn["role"] == "assistant" and len(assistants) == 1:
            name = ""
        needed.append(name)
    return needed


def _with_names_in_text(turns: list[Turn]) -> list[Turn]:
    for turn, name in zip(turns, needed_names(turns), strict=True):
        if turn["role"] != "tool":
            turn.pop("name", None)
        if name:
            text = turn.get("content")
            turn["content"] = f"{name}: {text}" if text else f"{name}:"
    return turns


def _with_names(turns: list[Turn]) -> list[Turn]:
    """Add the names of functions to their results."""
    for turn, call in zip(turns, find_calls(turns), strict=True):
        if call is not None:
            place, at = call
            turn.setdefault("name", turns[place]["tool_calls"][at]["function"]["name"])
    return turns


def _calls_as_text(turns: list[Turn], write_call: CallWriter) -> list[Turn]:
    for turn in turns:
        if calls := turn.pop("tool_calls", None):
            written = [
                write_call(call["function"]["name"], json_text(call["function"]["arguments"]))
                for call in calls
            ]
            said = [turn["content"]] if has_text(turn) else []
            turn["content"] = "\n".join([*said, *written])
    return turns


def _results_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """Combine consecutive results into one user turn."""
    adapted: list[Turn] = []
    for are_results, group in groupby(turns, lambda turn: turn["role"] == "tool"):
        if are_results:
            text = _responses(turn.get("content", "") for turn in group)
            adapted.append({"role": "user", "content": text})
        else:
            adapted += group
    return adapted


def _orphans_as_text(turns: Sequence[Turn]) -> list[Turn]:
    calls = find_calls(turns)
    return [
        {"role": "user", "content": _responses([turn.get("content", "")])}
        if turn["role"] == "tool" and call is None
        else turn
        for turn, call in zip(turns, calls, strict=True)
    ]


def _responses(results: Iterable[str]) -> str:
    return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


def _described(
    turns: list[Turn], tools: Sequence[Mapping[str, Any]], write_call: CallWriter
) -> list[Turn]:
    """Describe functions in the first system message."""
    example = write_call("FUNCTION", '{"ARGUMENT": VALUE}')
    listed = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    text = _DESCRIPTION.format(tools=listed, call=example)
    place = next((at for at, turn in enumerate(turns) if turn["role"] == "system"), None)
    if place is None:
        return [{"role": "system", "content": text}, *turns]
    own = turns[place].get("content", "")
    turns[place]["content"] = f"{own}{_TURN_BREAK}{text}"
    return turns


def _with_system_first(turns: Sequence[Turn]) -> list[Turn]:
    """Join all system messages into one at the beginning."""
    texts = [turn["content"] for turn in turns if turn["role"] == "system" and "content" in turn]
    others = [turn for turn in turns if turn["role"] != "system"]
    if len(others) == len(turns):
        return others
    return [{"role": "system", "content": _TURN_BREAK.join(filter(str.strip, texts))}, *others]


def _with_system_as_user(turns: list[Turn]) -> list[Turn]:
    """Move a leading system message into the user's first turn."""
    if not turns or turns[0]["role"] != "system":
        return turns
    system, *others = turns
    text = system.get("content", "")
    if others and others[0]["role"] == "user":
        own = others[0].get("content", "")
        both = _TURN_BREAK.join(filter(str.strip, [text, own]))
        return [{**others[0], "content": both}, *others[1:]]
    return [{"role": "user", "content": text}, *others] if text.strip() else others


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    joined: list[Turn] = []
    for turn in turns:
        last: Turn = joined[-1] if joined else {"role": ""}
        if turn["role"] == "tool" or turn["role"] != last["role"]:
            joined.append(turn)
            continue
        for key in ("reasoning_content", "content"):
            texts = [each[key] for each in (last, turn) if (each.get(key) or "").strip()]
            if texts:
                last[key] = _TURN_BREAK.join(texts)
        if calls := [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]:
            last["tool_calls"] = calls
    return joined


def _split(turns: Sequence[Turn], form: Form) -> list[Turn]:
    """Split turns with text and calls, or with several calls."""
    split: list[Turn] = []
    place = 0
    while place < len(turns):
        turn = turns[place]
        place += 1
        calls = turn.get("tool_calls")
        if not calls:
            split.append(turn)
            continue
        if form.splits_text and has_text(turn):
            split.append({"role": turn["role"], "content": turn["content"]})
            turn = {key: value for key, value in turn.items() if key != "content"}
        if not form.one_call or len(calls) == 1:
            split.append(turn)
            continue
        results: dict[str, list[Turn]] = {call["id"]: [] for call in calls}
        others: list[Turn] = []
        while place < len(turns) and turns[place]["role"] == "tool":
            results.get(turns[place].get("tool_call_id", ""), others).append(turns[place])
            place += 1
        for call in calls:
            split.append({**turn, "tool_calls": [call]})
            turn = {"role": turn["role"]}
            split += results[call["id"]]
        split += others
    return split


def _with_turns_after_results(turns: Sequence[Turn], text: str) -> list[Turn]:
    adapted: list[Turn] = []
    for turn in turns:
        if turn["role"] == "user" and adapted and adapted[-1]["role"] == "tool":
            adapted.append({"role": "assistant", "content": text})
        adapted.append(turn)
    return adapted


def _opened_by_user(turns: list[Turn], text: str) -> list[Turn]:
    at = 1 if turns and turns[0]["role"] == "system" else 0
    if at < len(turns) and turns[at]["role"] == "user":
        return turns
    return [*turns[:at], {"role": "user", "content": text}, *turns[at:]]


def _new_ids(turns: Sequence[Turn], ids: str) -> Mapping[str, str]:
    """Return the ids to write by the caller's ids; equal ids stay equal."""
    new: dict[str, str] = {}
    if ids == "given":
        return new
    for turn in turns:
        for call in turn.get("tool_calls", ()):
            if ids == "short":
                new[call["id"]] = _short(call["id"])
            else:
                new[call["id"]] = f"functions.{call['function']['name']}:{len(new)}"
        id_ = turn.get("tool_call_id")
        if id_ and id_ not in new and ids == "short":
            new[id_] = _short(id_)
    return new


def _short(id_: str) -> str:
    known = _SHORT_ID.fullmatch(id_)
    return id_ if known else hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _message(turn: Turn, form: Form, ids: Mapping[str, str]) -> dict[str, Any]:
    """Write one turn."""
    message = dict(turn)
    role, text, calls = turn["role"], turn.get("content"), turn.get("tool_calls")
    reasoning = message.pop("reasoning_content", None)
    if calls:
        message["tool_calls"] = [_call(call, form, ids) for call in calls]
        if not has_text(turn):
            text = message["content"] = "" if form.blank == "empty" else None
            if form.blank == "absent":
                del message["content"]
    elif text is None:
        text = message["content"] = ""
    if (id_ := turn.get("tool_call_id")) and id_ in ids:
        message["tool_call_id"] = ids[id_]
    if role in form.parts and text is not None:
        message["content"] = [{"type": "text", "text": text}]
    if reasoning and role == "assistant" and form.reasoning:
        if form.reasoning in ("part", "parts"):
            thought: Any = reasoning
            if form.reasoning == "parts":
                thought = [{"type": "text", "text": reasoning}]
            said = [{"type": "text", "text": text}] if text else []
            message["content"] = [{"type": "thinking", "thinking": thought}, *said]
        else:
            keys = REASONING_KEYS if form.reasoning == EVERY else (form.reasoning,)
            message |= dict.fromkeys(keys, reasoning)
    return message


def _call(call: Mapping[str, Any], form: Form, ids: Mapping[str, str]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        if form.odd_arguments == "object":
            arguments = {"arguments": arguments}
    elif form.arguments == "text":
        arguments = json_text(arguments)
    elif form.arguments == "texts":
        arguments = {name: json_text(value) for name, value in arguments.items()}
    id_ = call["id"]
    return {**call, "id": ids.get(id_, id_), "function": {**function, "arguments": arguments}}


def json_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _shown_tool(tool: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    """Return a tool in the form that the template renders."""
    function = dict(_function(tool))
    parameters = function.get("parameters")
    has_nulls = None in [*function.values(), *(parameters or {}).values()]
    if not (has_nulls or form.fills_description or form.fills_parameters or form.simple_types):
        return tool
    function = _without_nulls(function)
    parameters = _without_nulls(parameters) if parameters else parameters
    if form.fills_description and not function.get("description"):
        function["description"] = ""
    if form.fills_parameters and not (parameters and parameters.get("properties")):
        parameters = {"type": "object", "properties": {}, **(parameters or {})}
    if form.simple_types and parameters:
        parameters = simple_schema(parameters)
    if parameters is not None:
        function["parameters"] = parameters
    return {**tool, "function": function} if "function" in tool else function


def _tools_into_system(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], form: Form
) -> None:
    """Put functions under the key `tools` of the first system message."""
    functions: Any = [_function(tool) for tool in tools]
    if form.tools != "system_list":
        functions = json.dumps(functions, ensure_ascii=False)
    first = next((each for each in messages if each["role"] == "system"), None)
    if first is None:
        blank = [{"type": "text", "text": ""}] if "system" in form.parts else ""
        first = {"role": "system", "content": blank}
        messages.insert(0, first)
    first["tools"] = functions


_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object"})
_CHOICES = ("anyOf", "oneOf", "allOf")


def simple_schema(schema: Any) -> dict[str, Any]:
    """Reduce a JSON schema to one with a single known type in each place.

    Of several types or choices, the first one that is not null is kept. Properties get a
    description.
    """
    if not isinstance(schema, Mapping):
        return {"type": "string"}
    simple = _without_nulls({key: schema[key] for key in schema if key not in _CHOICES})
    choices = [
        choice
        for key in _CHOICES
        if isinstance(listed := schema.get(key), list)
        for choice in listed
        if isinstance(choice, Mapping) and choice.get("type") != "null"
    ]
    if choices:
        simple = {**simple_schema(choices[0]), **simple}
    types = simple.get("type")
    named = types if isinstance(types, list) else [types]
    known = [kind for kind in named if isinstance(kind, str) and kind in _TYPES]
    guess = next((kind for key, kind in _BY_KEY.items() if key in simple), "string")
    simple["type"] = kind = known[0] if known else guess
    if kind == "object" and isinstance(simple.get("properties"), Mapping):
        simple["properties"] = {
            name: {**(made := simple_schema(value)), "description": made.get("description", "")}
            for name, value in simple["properties"].items()
        }
    if kind == "array":
        simple["items"] = simple_schema(simple.get("items", {}))
    return simple


_BY_KEY = {"properties": "object", "items": "array"}
"""The type of a schema without one, by a key that it has."""
