"""Find a model's formats by rendering marked conversations with its chat template.

A template that renders a call reveals its format: the format that can read the call is the model's.
A format that is in no table is derived from the text around the call. A template that renders no
calls may describe their form in the prompt, which then contains the format's words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from os.path import commonprefix
from typing import Any

from trtllm_truss.conversation.templates import MarkedTurn, ModelTemplates
from trtllm_truss.conversation.writing import Written
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    ParsedText,
    Tool,
)
from trtllm_truss.tool_calls.formats import MarkerFormat
from trtllm_truss.tool_calls.grammars import Grammar, JsonGrammar, NamedGrammar
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.source import Source
from trtllm_truss.tool_calls.tool_format import ToolFormat, write_call

DEFAULT = "hermes"
"""The call format for models without a format of their own."""

UNKNOWN_CALLS = (
    "the chat template renders functions, but calls in no known format, so they stay in the "
    "text; set their format in serving.tool_parser, or force calls by tool_choice."
)

_TEXT, _REASONING = "Quuxtext", "Quuxreasoning"
_USER = {"role": "user", "content": "Quuxuser"}
_FUNCTION: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "quuxfunction",
        "description": "a function",
        "parameters": {"type": "object", "properties": {}},
    },
}
_MODES: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
)
_TAG = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*$")
_END_TAG = re.compile(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])")


def describe_formats(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> str:
    """Describe formats in a sentence for the operator."""
    calls = "calls stay in the text"
    if tools is not None:
        known = [name for name, form in TOOL_FORMATS.items() if form == tools]
        name = known[0] if known else f"the template writes them, behind {sorted(tools.signs)[0]!r}"
        calls = f"calls are read as {name}"
    if reasoning is None:
        return f"{calls}, reasoning stays in it" if tools is None else f"{calls}; no reasoning"
    words = " … ".join((reasoning.starts[0], reasoning.ends[0]))
    return f"{calls}; reasoning is read as {words}"


def find_tool_format(templates: ModelTemplates, tokens: Collection[str] = ()) -> ToolFormat | None:
    """Return the format of calls.

    For a template that renders functions but neither calls nor their form, the vocabulary decides.
    A template without tools gets a description of them, and with it the usual format.

    Returns:
        None if it is not recognized.
    """
    shown = _turn_with_call(templates)
    if shown is not None:
        turn, plain = shown
        known = _reading_format(turn)
        if isinstance(known, MarkerFormat) and not any(w in turn.text for w in known.dropped):
            return _derived_format(turn, plain) or known  # as bare JSON, after a marker
        return known or _derived_format(turn, plain)
    described = _described_format(_prompts(templates, with_tools=True))
    if described is not None:
        return described
    return _described_format(" ".join(tokens)) if _shows_tools(templates) else TOOL_FORMATS[DEFAULT]


def _turn_with_call(templates: ModelTemplates) -> tuple[MarkedTurn, str] | None:
    """Return a turn that shows a call, and one with a text; None if there is none.

    For a template that writes something after all turns, and so hides where one starts, the text
    after the user's turn is used.
    """
    turn = templates.marked_turn()
    if turn is not None and turn.calls[0][0] in turn.text:
        plain = templates.marked_turn(0, with_text=True)
        return turn, plain.text if plain else turn.header
    name, arguments = "quuxcalled", {"quuxkey": "quuxvalue"}
    for given, content in product((arguments, json.dumps(arguments)), ("", None, _TEXT)):
        function = {"name": name, "arguments": given}
        call = {"id": "call00001", "type": "function", "function": function}
        text = _answer_in_prompt(templates, {"content": content, "tool_calls": [call]})
        if name in text and "quuxvalue" in text:
            plain_text = _answer_in_prompt(templates, {"content": _TEXT})
            return MarkedTurn(text, "", "", "", ((name, arguments),)), plain_text
    return None


def _answer_in_prompt(templates: ModelTemplates, answer: Mapping[str, Any]) -> str:
    messages = [_USER, {"role": "assistant", **answer}]
    prompt = _rendered(templates, messages, {"tools": [_FUNCTION]})
    return prompt.rpartition(_USER["content"])[2]


def _shows_tools(templates: ModelTemplates) -> bool:
    """Return True if the template itself describes functions."""
    name = _FUNCTION["function"]["name"]
    if name in _rendered(templates, [_USER], {"tools": [_FUNCTION]}):
        return True
    try:
        written = next(templates.written([_USER], [_FUNCTION]))
        is_text = any(name in str(message.get("content")) for message in written.messages)
        return not is_text and name in templates.render(written)
    except InvalidRequest:
        return False


def find_reasoning_format(templates: ModelTemplates) -> ReasoningFormat | None:
    """Return the format of reasoning; None if it is not recognized."""
    prompts = [_prompts(templates, variables=mode) for mode in _MODES]
    prompts.append(_prompts(templates, with_tools=True))
    turns = [
        templates.marked_turn(calls, with_text=with_text, reasons=True)
        for calls, with_text in ((0, True), (1, False), (1, True))
    ]
    shown = [turn for turn in turns if turn is not None]
    prompts += [turn.text for turn in shown]
    blocks = {"blocks": [{"type": "thoughts", "text": _REASONING}]}  # of Apertus
    prompts.append(_rendered(templates, [_USER, {"role": "assistant", "content": blocks}]))
    text = "\n".join(prompts)
    found = {name: _count_words(text, each) for name, each in REASONING_FORMATS.items()}
    best = max(found, key=found.__getitem__)
    if not found[best]:
        return _taken_out(templates) or _derived_reasoning(shown)
    chosen = REASONING_FORMATS[best]
    wrappers = tuple(pair for pair in chosen.wrappers if not pair[0] or pair[0] in text)
    return chosen if wrappers == chosen.wrappers else replace(chosen, wrappers=wrappers)


def _prompts(
    templates: ModelTemplates,
    *,
    with_tools: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt of a question, in the template's form and unchanged."""
    tools = [_FUNCTION] if with_tools else None
    prompt = _rendered(templates, [_USER], {**(variables or {}), "tools": tools})
    try:
        written = next(templates.written([_USER], tools, variables=variables))
        return prompt + templates.render(written, variables=variables)
    except InvalidRequest:
        return prompt


def _rendered(
    templates: ModelTemplates,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt for unchanged messages; empty if the template refuses them."""
    written = Written([dict(each) for each in messages], {}, "tool_use")
    try:
        return templates.render(written, variables=variables)
    except InvalidRequest:
        return ""


def _taken_out(templates: ModelTemplates) -> ReasoningFormat | None:
    """Return the format whose reasoning the template removes from earlier turns."""
    for each in REASONING_FORMATS.values():
        content = f"{each.starts[0]}{_REASONING}{each.ends[0]}{_TEXT}"
        prompt = _rendered(templates, [_USER, {"role": "assistant", "content": content}, _USER])
        if _TEXT in prompt and _REASONING not in prompt:
            return replace(each, wrappers=())
    return None


def _text_left(form: ToolFormat, turn: MarkedTurn) -> int | None:
    """Return how much text is left besides the call; None if the format cannot read it."""
    ((name, arguments),) = turn.calls
    source = Source()
    emitter = Emitter(source, [Tool(name, {})])
    source.feed(turn.text)
    source.end()
    for _ in form.parse(source, emitter):
        pass
    emitter.finish()
    events = emitter.drain()
    calls = [event for event in events if isinstance(event, CallStarted)]
    written = "".join(event.json for event in events if isinstance(event, ArgumentsDelta))
    are_whole = all(event.complete for event in events if isinstance(event, CallEnded))
    if len(calls) != 1 or not are_whole or json.loads(written) != arguments:
        return None
    return sum(len(event.text) for event in events if isinstance(event, ParsedText))


def _reading_format(turn: MarkedTurn) -> ToolFormat | None:
    """Return the format that reads a turn's call and writes it most similarly."""
    best, fewest = None, (0, 0)
    for name, form in TOOL_FORMATS.items():
        left = _text_left(form, turn) if name != "json" else None
        if left is not None:
            unlike = left, _unlikeness(form, turn)
            if best is None or unlike < fewest:
                best, fewest = form, unlike
    return best


def _unlikeness(form: ToolFormat, turn: MarkedTurn) -> int:
    """Return how much of the format's own version of the call the turn lacks, from its end on."""
    ((name, arguments),) = turn.calls
    guides = form.guides([Tool(name, {})], parallel=True)
    if not guides:
        return 0
    written = "".join(write_call(guides[0], name, json.dumps(arguments)).split())
    shown = "".join(turn.text.split())
    return min(
        missing for missing in range(len(written) + 1) if written[: len(written) - missing] in shown
    )


def _derived_format(turn: MarkedTurn, plain: str) -> ToolFormat | None:
    """Derive a format from the text around a call.

    Args:
        plain: the same turn with a text instead of the call.
    """
    body = _difference(turn.text, plain)
    for derive in (_derive_json, _derive_named):
        derived = derive(body, turn.calls[0][0])
        if derived is not None and _text_left(derived, turn) is not None:
            return derived
    return None


def _difference(text: str, other: str) -> str:
    """Return the part of a text that another one does not have, with whole tags at its ends."""
    begin = len(commonprefix([text, other]))  # noqa: RUF071 - of characters, not of folders
    if (tag := text.rfind("<", 0, begin)) > text.rfind(">", 0, begin):
        begin = tag
    same = commonprefix([text[begin:][::-1], other[begin:][::-1]])  # noqa: RUF071
    part = text[begin : len(text) - len(same)]
    tag = part.rfind("<")
    return part[:tag] if tag > part.rfind(">") else part


def _derive_json(body: str, name: str) -> MarkerFormat | None:
    begin = body.rfind("{", 0, max(body.find(f'"{name}"'), 0))
    if begin < 0:
        return None
    before = body[:begin].rstrip()
    is_array = before.endswith("[")
    end = _end_of_json(body, begin)
    if end is None:
        return None
    grammar = JsonGrammar(
        prefix=before[:-1] if is_array else body[:begin],
        suffix=body[end:].lstrip().removeprefix("]") if is_array else body[end:],
        writes_array=is_array,
        has_names_as_keys=f'"{name}": {{' in body,
    )
    return _behind_marker(grammar, grammar.prefix, grammar.suffix)


def _derive_named(body: str, name: str) -> MarkerFormat | None:
    prefix, _, rest = body.partition(name)
    separator = rest[: max(rest.find("{"), 0)]
    end = _end_of_json(rest, len(separator))
    if end is None:
        return None
    separators = (separator.strip(),) if separator.strip() else ()
    grammar = NamedGrammar(separators=separators, written=(f"{prefix}NAME{separator}", rest[end:]))
    return _behind_marker(grammar, prefix, rest[end:])


def _behind_marker(grammar: Grammar, prefix: str, suffix: str) -> MarkerFormat | None:
    marker, closer = prefix.strip(), suffix.strip()
    if len(marker) < 2 or marker.isalnum() or set(marker) & set('{"'):
        return None
    return MarkerFormat((grammar,), (marker,), closers=(closer,) if closer else ())


def _end_of_json(text: str, begin: int) -> int | None:
    try:
        return json.JSONDecoder().raw_decode(text, begin)[1]
    except ValueError:
        return None


def _described_format(prompt: str) -> ToolFormat | None:
    """Return the format whose words a prompt contains."""
    best, most = None, 0
    for form in TOOL_FORMATS.values():
        words = {word for word in form.signs | form.special_tokens if word in prompt}
        if words & form.signs and len(words) > most:
            best, most = form, len(words)
    return best


def _count_words(text: str, form: ReasoningFormat) -> int:
    """Count the format's words in a text; 0 if it contains none that opens or closes reasoning."""
    own = {*form.starts, *(form.ends if form.is_single else ())}
    if not any(word in text for word in own):
        return 0
    words = {*own, *form.ends, *(word for pair in form.wrappers for word in pair if word)}
    return sum(word in text for word in words)


def _derived_reasoning(turns: Sequence[MarkedTurn]) -> ReasoningFormat | None:
    """Derive a format from the tags around reasoning."""
    for turn in turns:
        before, shown, after = turn.text.partition(turn.reasoning)
        start, end = _TAG.search(before), _END_TAG.match(after)
        if shown and start and end:
            return ReasoningFormat((start.group(1),), (end.group(1),), f"\n{end.group(1)}")
    return None
