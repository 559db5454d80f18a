"""The chat templates of one model, and the form in which each conversation is rendered."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, repeat
from typing import Any, NamedTuple

from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.outline import (
    CallOutline,
    Mark,
    Marked,
    Outline,
    TurnOutline,
    mark,
    outline_of,
    tool,
)
from trtllm_truss.conversation.probing import (
    Change,
    Outcome,
    Shape,
    Templates,
    attempt,
    probe,
    render_written,
)
from trtllm_truss.conversation.writing import (
    CallWriter,
    Written,
    has_text,
    identified,
    write,
    write_as_json,
)
from trtllm_truss.errors import InvalidRequest

_ARGUMENTS: CallOutline = "arguments"

_KEPT_FORMS = 512
"""Number of outlines whose form is cached."""

_MAX_ATTEMPTS = 48
MAX_SEARCH_S = 2.0
"""CPU time limit of the attempts for one outline, in addition to the template's own limit for each.

A typical template takes 0.3 ms per attempt.
"""

_MAX_OUTLINE_TURNS = 512
_LONG_VARIABLES = 256

_REPAIRS: Sequence[Change] = (
    {"names": "text"},
    {"joins": True},
    {"system": "first"},
    {"system": "user"},
    {"orphans": "user"},
    {"one_call": True},
    {"splits_text": True},
    {"blank": "empty"},
    {"blank": "absent"},
    {"blank": "none"},
    {"drops_blank": True},
    {"after_result": ""},
    {"after_result": " "},
    {"opens_with_user": ""},
    {"opens_with_user": " "},
    {"odd_arguments": "object"},
    {"arguments": "text"},
    {"named_results": True},
    {"reasoning": ""},
    {"tool_template": "calls"},
    {"tools": "text"},
)
"""Changes of the form for an outline that the model's own form cannot render; mild ones first."""

_AS_SENT: Change = {
    "system": "anywhere",
    "joins": False,
    "opens_with_user": None,
    "after_result": None,
    "drops_blank": False,
    "splits_text": False,
    "one_call": False,
    "orphans": "tool",
}
"""Turns as they were sent; tried first, so that everything the template renders stays in place."""

_AS_TEXT: Change = {
    "calls": "text",
    "results": "user",
    "joins": True,
    "drops_blank": True,
    "opens_with_user": "",
    "after_result": None,
    "splits_text": False,
    "one_call": False,
    "tools": "text",
}
_LAST_RESORTS: Sequence[Change] = (
    {"calls": "text", "results": "user"},
    {**_AS_TEXT, "system": "first"},
    {**_AS_TEXT, "system": "user"},
    {**_AS_TEXT, "system": "user", "opens_with_user": " "},
)
_FOR_VALUES: Sequence[Change] = (
    {"arguments": "texts"},
    {"arguments": "text"},
    {"fills_description": True, "fills_parameters": True, "simple_types": True},
    {"tools": "text"},
    *_LAST_RESORTS[1:3],
)
"""Changes for a conversation whose outline the template accepts, but not its values."""


class Asked(NamedTuple):
    """The properties of a request on which its form depends.

    Attributes:
        variables: the request's template variables, or a digest of long ones.
    """

    outline: Outline
    with_tools: bool
    add_generation_prompt: bool
    continue_final_message: bool
    variables: str


@dataclass(frozen=True, slots=True)
class MarkedTurn:
    """An assistant turn as the template writes it.

    Attributes:
        text: text of the turn from the end of the user's turn on, including its end.
        header: generation prompt, with which `text` may start.
        reasoning: marker of the reasoning; empty without.
        content: marker of the text next to the calls; empty without.
        calls: marker of each name, with those of its arguments' keys and values.
    """

    text: str
    header: str
    reasoning: str
    content: str
    calls: tuple[tuple[str, Mapping[str, str]], ...]


class ModelTemplates:
    """The chat templates of one model. Thread-safe.

    Args:
        templates: `default`, and `tool_use` if the model has one.
        variables: variables for every rendering, such as `bos_token`.
    """

    def __init__(self, templates: Templates, variables: Mapping[str, Any]) -> None:
        self._templates = templates
        self._variables = variables
        self._lock = threading.Lock()
        self._forms: dict[Asked, Form | str] = {}

    @cached_property
    def shape(self) -> Shape:
        """Findings about the templates; computed at first use, in milliseconds."""
        with self._lock:
            found = self.__dict__.get("shape")
            return found or probe(self._templates, self._variables)

    def written(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        write_call: CallWriter = write_as_json,
    ) -> Iterator[Written]:
        """Write a conversation in the form that renders all of it, then in others, mild ones first.

        The others are for values that the template does not accept.

        Args:
            variables: variables of the request.
            write_call: writes calls into the text for templates that show none.

        Raises:
            InvalidRequest: no form renders it, or it has no text to continue; the message says
                which part is lost, or why.
        """
        if continue_final_message and not (turns and has_text(turns[-1])):
            raise InvalidRequest(
                "the last of messages has no text to continue; add one, or set "
                "continue_final_message to false.",
                param="messages",
            )
        turns = identified(turns)
        asked = Asked(
            outline_of(turns),
            bool(tools),
            add_generation_prompt,
            continue_final_message,
            _digest(variables or {}),
        )
        form = self._form(asked, variables or {})
        tried: list[Form] = []
        for change in ({}, *_FOR_VALUES):
            changed = replace(form, **change)
            if changed not in tried:
                tried.append(changed)
                yield write(turns, tools, changed, write_call)

    def render(
        self,
        written: Written,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        limit_s: float | None = None,
    ) -> str:
        """Render the output of `written`.

        Raises:
            InvalidRequest: the template rejects it, or fails on it.
        """
        return render_written(
            self._templates,
            written,
            {**(variables or {}), **self._variables},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            limit_s=limit_s,
        )

    def marked_turn(
        self, calls: int = 1, *, with_text: bool = False, reasons: bool = False
    ) -> MarkedTurn | None:
        """Render an assistant turn with marked calls, after a user turn.

        Returns:
            None if the template writes no calls of its own, or not such a turn.
        """
        user = TurnOutline("user")
        text, made = "text" if with_text else "none", tuple(repeat(_ARGUMENTS, calls))
        turn = TurnOutline("assistant", text, reasons, made)
        marked = mark((user, turn))
        marked.tools = [tool(marked)]
        form = self.shape.form
        if calls and form.calls == "text":
            return None
        written = write(marked.turns, marked.tools, form)
        if sum(message["role"] == "assistant" for message in written.messages) != 1:
            return None
        before = write(marked.turns[:1], marked.tools, form)
        try:
            prompt = self.render(written, add_generation_prompt=False)
            start = self.render(before, add_generation_prompt=False)
            header = self.render(before)[len(start) :]
        except InvalidRequest:
            return None
        if not prompt.startswith(start):
            return None
        own = marked.turns[1]
        functions = [call["function"] for call in own.get("tool_calls", ())]
        return MarkedTurn(
            text=prompt[len(start) :],
            header=header,
            reasoning=own.get("reasoning_content", ""),
            content=own.get("content", ""),
            calls=tuple((each["name"], each["arguments"]) for each in functions),
        )

    def _form(self, asked: Asked, variables: Mapping[str, Any]) -> Form:
        found = self._forms.get(asked)
        if found is None:
            try:
                found = self._find(asked, variables)
            except InvalidRequest as error:
                found = error.message
            if len(self._forms) >= _KEPT_FORMS:
                self._forms.clear()
            self._forms[asked] = found
        if isinstance(found, str):
            raise InvalidRequest(found, param="messages")
        return found

    def _find(self, asked: Asked, variables: Mapping[str, Any]) -> Form:
        """Find the form that renders every marker of an outline."""
        shape = self.shape
        if len(asked.outline) > _MAX_OUTLINE_TURNS:
            return shape.form
        marked = mark(asked.outline, with_tools=asked.with_tools)

        def render(written: Written) -> str:
            return self.render(
                written,
                add_generation_prompt=asked.add_generation_prompt,
                variables=variables,
            )

        first: Outcome | None = None
        best: tuple[int, Form] | None = None
        began_s = time.thread_time()
        for form in _candidates(shape.form, marked):
            outcome = attempt(render, marked, form)
            first = first or outcome
            if not outcome.shows_texts:
                if time.thread_time() - began_s > MAX_SEARCH_S:
                    break
                continue
            lost = [
                each
                for each in outcome.lost
                if each.what != "reasoning" or each.where in shape.reasoning_places
            ]
            faults = len(lost) + outcome.blemishes
            if best is None or faults < best[0]:
                best = (faults, form)
            if not faults:
                break
        if best is None:
            assert first is not None
            raise _refusal(first)
        return best[1]


def _digest(variables: Mapping[str, Any]) -> str:
    if not variables:
        return ""
    text = json.dumps(variables, sort_keys=True)
    return text if len(text) < _LONG_VARIABLES else hashlib.sha256(text.encode()).hexdigest()


def _candidates(form: Form, marked: Marked) -> Iterator[Form]:
    """Yield forms that differ for this conversation: turns as sent, the model's form, others."""
    changes: Iterator[Change] = iter(
        [
            _AS_SENT,
            {},
            *_REPAIRS,
            *({**one, **two} for one, two in combinations(_REPAIRS, 2)),
        ]
    )
    seen: list[Written] = []

    def is_new(candidate: Form) -> bool:
        written = write(marked.turns, marked.tools, candidate)
        is_new = written not in seen
        seen.append(written)
        return is_new

    for change in changes:
        if len(seen) > _MAX_ATTEMPTS:
            break
        if is_new(candidate := replace(form, **change)):
            yield candidate
    for change in _LAST_RESORTS:
        if is_new(candidate := replace(form, **change)):
            yield candidate


_REMEDY = (
    "Send turns of system, user, assistant and tool, the first by the user, in which user and "
    "assistant alternate."
)


_VARIABLE_REMEDY = "If the template needs a variable of this name, send it in chat_template_kwargs."


_VALUES_REMEDY = (
    "The template accepts turns like these with other texts: change or shorten the refused "
    "one; the result of a function is a message of role tool."
)


def with_remedy(message: str, remedy: str = _VALUES_REMEDY) -> str:
    """Add a remedy to a template's reason; by default one about the values of texts."""
    if message.endswith("is undefined"):
        remedy = _VARIABLE_REMEDY
    return f"{message}{'' if message.endswith(('.', '!', '?')) else '.'} {remedy}"


def _refusal(outcome: Outcome) -> InvalidRequest:
    if outcome.error is not None:
        return InvalidRequest(with_remedy(outcome.error, _REMEDY), param="messages")
    lost: Mark = next(each for each in outcome.lost if each.what != "reasoning")
    if lost.turn is None:
        what = f"the {lost.what} of a function in tools"
    else:
        what = f"the {lost.what} of a message by {lost.turn.role!r}"
    return InvalidRequest(
        f"the model's chat template shows in no form {what}. {_REMEDY}", param="messages"
    )
