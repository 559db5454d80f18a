"""The outline of a conversation, and marked conversations with the same outline.

Whether a template renders a text depends on its position, not on its contents. So a form is proven
for an outline: a conversation with marker words in the same positions is rendered, and each marker
must be in the prompt.

The outline of a long conversation is short: of equal steps (an assistant turn with its results) and
of equal rounds (from one user turn to the next), three are kept; of many different ones, the first,
the last, and one of each other kind.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from trtllm_truss.conversation import Turn
from trtllm_truss.conversation.writing import find_calls, needed_names

_KEPT_EQUAL = 3
_KEPT_FIRST, _KEPT_LAST = 2, 3

T = TypeVar("T", bound=Hashable)


CallOutline = Literal["arguments", "every type", "no arguments", "no object"]
"""The arguments of a call. The outline of real turns does not distinguish types of values."""


class TurnOutline(NamedTuple):
    """One turn.

    Attributes:
        text: `none`, `blank` or `text`.
        answers: position within its step of the call that a result belongs to; None without one.
        name: name of its author or function: `none`, `given`, or `needed` as in `needed_names`.
    """

    role: str
    text: str = "text"
    reasons: bool = False
    calls: tuple[CallOutline, ...] = ()
    answers: int | None = None
    name: Literal["none", "given", "needed"] = "none"


Outline = tuple[TurnOutline, ...]


def outline_of(turns: Sequence[Mapping[str, Any]]) -> Outline:
    """Return the outline of a conversation."""
    steps: list[list[TurnOutline]] = []
    calls, names = find_calls(turns), needed_names(turns)
    for turn, call, name in zip(turns, calls, names, strict=True):
        text = turn.get("content")
        outline = _known_turn(
            turn["role"],
            "none" if text is None else "text" if text and not text.isspace() else "blank",
            bool(turn.get("reasoning_content")),
            tuple(map(_arguments, turn["tool_calls"])) if "tool_calls" in turn else (),
            None if call is None else call[1],
            "needed" if name else "given" if turn.get("name") else "none",
        )
        if outline.role == "tool" and steps:
            steps[-1].append(outline)
        else:
            steps.append([outline])
    rounds: list[list[Outline]] = []
    last = ""
    for step in steps:
        role = step[0].role
        if (role == "user" and last != "user") or not rounds:
            rounds.append([])
        rounds[-1].append(tuple(step))
        last = role
    short = _shortened([_shortened(each) for each in rounds])
    return tuple(turn for steps in short for step in steps for turn in step)


_known_turn = lru_cache(1024)(TurnOutline)
"""Equal outlines are one object, because they are compared and hashed for each request."""


def _arguments(call: Mapping[str, Any]) -> CallOutline:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, Mapping):
        return "no object"
    return "arguments" if arguments else "no arguments"


def _shortened(items: Sequence[T]) -> tuple[T, ...]:
    kept: list[T] = []
    equal = 0
    for item in items:
        equal = equal + 1 if kept and kept[-1] == item else 1
        if equal <= _KEPT_EQUAL:
            kept.append(item)
    if len(kept) <= _KEPT_FIRST + _KEPT_LAST:
        return tuple(kept)
    ends = [*kept[:_KEPT_FIRST], *kept[-_KEPT_LAST:]]
    middle = [item for item in dict.fromkeys(kept) if item not in ends]
    return (*kept[:_KEPT_FIRST], *middle, *kept[-_KEPT_LAST:])


class Mark(NamedTuple):
    """A marker word.

    Attributes:
        what: kind of text that it represents, for messages: `text`, `reasoning`, `call` …
        turn: outline of its turn; None for a function.
        where: for reasoning, its position; see `reasoning_place`.
    """

    word: str
    what: str
    turn: TurnOutline | None = None
    where: str = ""


_NONE = re.compile(r"\bNone\b")
_WRITTEN_PART = re.compile(r"""['"]type\\?['"]: ?\\?['"](text|thinking)\\?['"]""")


@dataclass
class Marked:
    """A conversation of marker words.

    Attributes:
        marks: all markers in it.
        keys: markers that are names of arguments.
        calls: name of each call with its first argument.
        textless: markers before and after each turn that has calls and no text.
    """

    turns: list[Turn] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    marks: list[Mark] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    textless: list[tuple[str, str]] = field(default_factory=list)

    def word(self, what: str, turn: TurnOutline | None = None, where: str = "") -> str:
        """Add a marker and return its word."""
        word = f"qz{len(self.marks):03}w"
        self.marks.append(Mark(word, what, turn, where))
        return word

    def lost(self, prompt: str) -> list[Mark]:
        """Return the markers that a prompt does not contain.

        The name of a call must precede its arguments; elsewhere it belongs to the result.
        """
        late = {
            name for name, argument in self.calls if prompt.find(name) > prompt.find(argument) >= 0
        }
        return [mark for mark in self.marks if mark.word not in prompt or mark.word in late]

    def leaks(self, prompt: str) -> bool:
        """Return True if a prompt shows a list of parts as code instead of its texts."""
        return _WRITTEN_PART.search(prompt) is not None

    def blemishes(self, prompt: str) -> int:
        """Count defects in a prompt.

        These are None written for a turn's missing text, and arguments written as JSON within JSON
        or as a Python dictionary.
        """
        count = 0
        for before, after in self.textless:
            begin, end = prompt.find(before), prompt.find(after) if after else len(prompt)
            count += begin >= 0 and _NONE.search(prompt, begin, max(begin, end)) is not None
        for key in self.keys:
            count += f'\\"{key}' in prompt
            count += f"'{key}'" in prompt
        return count


def mark(outline: Outline, *, with_tools: bool = False) -> Marked:
    """Build a marked conversation."""
    marked = Marked()
    last_user = max((at for at, turn in enumerate(outline) if turn.role == "user"), default=-1)
    ids: list[str] = []
    called: dict[str, str] = {}
    for place, turn in enumerate(outline):
        made: Turn = {"role": turn.role}
        if turn.text != "none":
            made["content"] = "" if turn.text == "blank" else marked.word("text", turn)
        if turn.reasons:
            where = reasoning_place(turn, after_last_user=place > last_user)
            made["reasoning_content"] = marked.word("reasoning", turn, where)
        if turn.role == "tool":
            unknown = turn.answers is None or turn.answers >= len(ids)
            made["tool_call_id"] = f"orphan{place}" if unknown else ids[turn.answers or 0]
        else:
            ids = [f"call_{place}_{at}" for at, _ in enumerate(turn.calls)]
        if turn.calls:
            made["tool_calls"] = [
                _call(id_, call, marked, turn) for id_, call in zip(ids, turn.calls, strict=True)
            ]
            called = {call["id"]: call["function"]["name"] for call in made["tool_calls"]}
        if turn.name == "needed":
            made["name"] = marked.word("name", turn)
        elif turn.name == "given":
            made["name"] = called.get(made.get("tool_call_id", ""), "author")
        marked.turns.append(made)
    marked.textless = [*_textless(marked.turns)]
    if with_tools:
        marked.tools = [tool(marked)]
    return marked


def _textless(turns: Sequence[Turn]) -> Iterator[tuple[str, str]]:
    """Yield the texts around each turn that has calls and no text; none of the values is None."""
    for place, turn in enumerate(turns):
        calls = turn.get("tool_calls", ())
        odd = any("null" in call["function"]["arguments"] for call in calls)
        before = turns[place - 1].get("content") if place else None
        if calls and not turn.get("content") and before and not odd:
            after = turns[place + 1].get("content") if place + 1 < len(turns) else None
            yield before, after or ""


def reasoning_place(turn: TurnOutline, *, after_last_user: bool) -> str:
    """Return the position of a turn's reasoning, as far as templates distinguish it."""
    kind = "answer"
    if turn.calls:
        kind = "call" if turn.text != "text" else "text and call"
    return kind if after_last_user else f"earlier {kind}"


def _call(id_: str, call: CallOutline, marked: Marked, turn: TurnOutline) -> dict[str, Any]:
    def word() -> str:
        return marked.word("arguments", turn)

    name = marked.word("call", turn)
    arguments: Any = {}
    if call == "no object":
        arguments = f'{{"cut": "{word()}'
    elif call != "no arguments":
        arguments[word()] = word()
        marked.keys += arguments
        marked.calls.append((name, marked.keys[-1]))
    if call == "every type":
        arguments |= {"number": 7, "boolean": True, "null": None, "list": [word()]}
        arguments["object"] = {"inner": word()}
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(marked: Marked) -> dict[str, Any]:
    """Return a function with a description and one parameter."""
    return {
        "type": "function",
        "function": {
            "name": marked.word("function"),
            "description": marked.word("description"),
            "parameters": {
                "type": "object",
                "properties": {
                    marked.word("parameter"): {"type": "string", "description": "a text"}
                },
                "required": [],
            },
        },
    }
