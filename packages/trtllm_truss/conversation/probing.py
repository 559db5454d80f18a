"""Find by trial what a chat template renders, and in which form.

Each question consists of one or a few marked conversations and the forms to try, in the order of
preference of `transformers` and of model authors. The first form that renders and shows every
marker is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, Protocol

from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.outline import (
    CallOutline,
    Mark,
    Marked,
    Outline,
    TurnOutline,
    mark,
    tool,
)
from trtllm_truss.conversation.writing import EVERY, REASONING_KEYS, Written, write
from trtllm_truss.errors import InvalidRequest

MAX_PROBE_S = 2.0
"""Time limit for all questions; a template takes milliseconds."""


class Template(Protocol):
    """A compiled chat template, with limits on time and size."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        limit_s: float = ...,
    ) -> str:
        """Render the prompt.

        Raises:
            InvalidRequest: the template rejects these messages, or fails on them.
        """

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        limit_s: float = ...,
    ) -> str:
        """Render the prompt up to the end of the last message's text.

        Raises:
            InvalidRequest: as for `render`, or the template cannot end a prompt there.
        """


Templates = Mapping[str, Template]
"""A model's templates: `default`, and `tool_use` if it has one."""


def render_written(
    templates: Templates,
    written: Written,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    limit_s: float | None = None,
) -> str:
    """Render a conversation with a template.

    Args:
        limit_s: CPU time; by default the template's own limit.

    Raises:
        InvalidRequest: the template rejects it, or fails on it.
    """
    template = templates.get(written.template) or templates["default"]
    context = {
        **variables,
        **written.variables,
        "add_generation_prompt": add_generation_prompt,
    }
    render = template.render_open if continue_final_message else template.render
    limit = {} if limit_s is None else {"limit_s": limit_s}
    return render(written.messages, context, **limit)


_BY_DESIGN = frozenset({"reasoning", "description", "parameter"})
"""Kinds of markers that a template may omit: reasoning, and parts of functions."""


class Outcome(NamedTuple):
    """The result of one rendering.

    Attributes:
        error: message of the refusal; None for a prompt. The exception itself would keep its
            callers alive.
        lost: markers missing from the prompt.
        blemishes: see `Marked.blemishes`.
        shows_calls: the prompt shows some part of calls.
    """

    error: str | None
    lost: Sequence[Mark]
    blemishes: int = 0
    shows_calls: bool = False

    @property
    def shows_all(self) -> bool:
        return self.error is None and not self.lost

    @property
    def shows_texts(self) -> bool:
        """Return True if every text is in the prompt, except those that templates may omit."""
        return self.error is None and all(mark.what in _BY_DESIGN for mark in self.lost)


Render = Callable[[Written], str]


def attempt(render: Render, marked: Marked, form: Form) -> Outcome:
    """Render a marked conversation in a form."""
    written = write(marked.turns, marked.tools, form)
    try:
        prompt = render(written)
    except InvalidRequest as error:
        return Outcome(error.message, marked.marks)
    if marked.leaks(prompt):
        return Outcome(None, marked.marks)
    lost = marked.lost(prompt)
    shown = {each.what for each in marked.marks if each not in lost}
    return Outcome(
        None, lost, marked.blemishes(prompt), not shown.isdisjoint(("call", "arguments"))
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one question.

    Attributes:
        question: the conversation that was rendered.
        answer: `shown`, the way it must be written, or why it cannot be shown.
        is_shown: it can be shown.
        renders: number of renderings.
    """

    question: str
    answer: str
    is_shown: bool
    renders: int


_SYSTEM_WORDS = {
    "anywhere": "system messages in their place",
    "first": "system messages at the beginning",
    "user": "system messages in the user's text",
}
_SYSTEM_NAME, _CALL_NAME = "a system message at the beginning", "a call and its result"
_FUNCTIONS_NAME = "functions"
_REASONING_NAME, _CONTINUING_NAME = "reasoning", "a last message to continue"


@dataclass(frozen=True, slots=True)
class Shape:
    """Findings about a model's chat templates.

    Attributes:
        form: the form in which conversations are written.
        reasoning_places: where reasoning is rendered; see `outline.reasoning_place`.
        continues: a prompt can end with the text of the last message.
        answers: one per question.
        took_s: total time of all renderings.
    """

    form: Form = field(default_factory=Form)
    reasoning_places: frozenset[str] = frozenset()
    continues: bool = True
    answers: tuple[Answer, ...] = ()
    took_s: float = 0.0

    @property
    def renders(self) -> int:
        return sum(answer.renders for answer in self.answers)

    @property
    def sentence(self) -> str:
        """Summarize in one line, for the operator, what the chat template renders."""
        form = self.form
        hidden = [each.question for each in self.answers if not each.is_shown]
        functions = "functions" if form.tools != "text" else "functions described in the text"
        calls = "calls as text"
        if form.calls == "template":
            calls = "calls, one per turn" if form.one_call else "calls"
        reasoning = "no reasoning of earlier turns"
        if self.reasoning_places:
            places = ", ".join(sorted(self.reasoning_places))
            reasoning = f"reasoning as {form.reasoning} ({places})"
        shown = [
            *([_SYSTEM_WORDS[form.system]] if _SYSTEM_NAME not in hidden else []),
            *([functions] if _FUNCTIONS_NAME not in hidden else []),
            *([calls] if _CALL_NAME not in hidden else []),
            reasoning,
            *(["content as parts"] if form.parts else []),
            *(["turns of one role joined"] if form.joins else []),
            *(["a last message to continue"] if self.continues else []),
        ]
        words = f"the chat template shows {'; '.join(shown)}"
        hidden = [each for each in hidden if each not in (_REASONING_NAME, _CONTINUING_NAME)]
        return f"{words}; in no form: {', '.join(hidden)}" if hidden else words


_S, _U, _A = (TurnOutline(role) for role in ("system", "user", "assistant"))


def _calls(*calls: CallOutline, text: str = "none", reasons: bool = False) -> TurnOutline:
    return TurnOutline("assistant", text, reasons, calls)


def _result(answers: int | None = 0) -> TurnOutline:
    return TurnOutline("tool", answers=answers)


_CALL, _RESULT = _calls("arguments"), _result()
_THINKS = TurnOutline("assistant", reasons=True)
_CALL_THINKS = _calls("arguments", reasons=True)
_ALL_ROLES = frozenset({"system", "user", "assistant", "tool"})

Change = Mapping[str, Any]
_AS_IS: Change = {}


@dataclass(frozen=True)
class _Question:
    """A question.

    Attributes:
        name: description of the conversation.
        outlines: conversations that one form must show.
        changes: changes of the form, in order of trial, each with the words for its answer.
        tools: creates the offered functions; None for none.
        about: kinds of markers that must be shown; none means all.
        applies: returns True if the question applies to the form so far.
    """

    name: str
    outlines: Sequence[Outline]
    changes: Sequence[tuple[Change, str]] = ()
    tools: Callable[[Marked], list[dict[str, Any]]] | None = None
    about: frozenset[str] = frozenset()
    applies: Callable[[Form], bool] = field(default=lambda form: True)

    def conversations(self) -> list[Marked]:
        made = []
        for outline in self.outlines:
            marked = mark(outline)
            if self.tools is not None:
                marked.tools = self.tools(marked)
            if self.about:
                marked.marks = [each for each in marked.marks if each.what in self.about]
            made.append(marked)
        return made


def _call_changes() -> Iterator[tuple[Change, str]]:
    """Yield the forms of one call."""
    ids = {"given": "", "short": "ids of nine characters", "functions": "ids with the name"}
    named = {False: "", True: "results with the name"}
    arguments = {"object": "", "text": "arguments as JSON text"}
    blank = {"none": "", "empty": "with an empty text", "absent": "without content"}
    for id_, is_named, argument, content in product(ids, named, arguments, blank):
        change = {
            "ids": id_,
            "named_results": is_named,
            "arguments": argument,
            "blank": content,
        }
        words = (ids[id_], named[is_named], arguments[argument], blank[content])
        yield change, ", ".join(filter(None, words))


_IN_TEXT: Sequence[tuple[Change, str]] = [
    ({"calls": "text"}, "in the text"),
    ({"calls": "text", "named_results": True}, "in the text, results with the name"),
    ({"calls": "text", "results": "user"}, "in the text, results as the user's"),
    (
        {"calls": "text", "results": "user", "joins": True},
        "in the text, results as the user's; turns of one role joined",
    ),
]


def _native(form: Form) -> bool:
    return form.calls == "template"


def _by_template(form: Form) -> bool:
    return form.tools != "text"


def _one_tool(marked: Marked) -> list[dict[str, Any]]:
    return [tool(marked)]


def _bare_tools(marked: Marked) -> list[dict[str, Any]]:
    """Return functions without description, without parameters, and without properties."""
    described, named = tool(marked), tool(marked)
    del described["function"]["parameters"]
    del named["function"]["description"]
    marked.marks = [mark for mark in marked.marks if mark.word in str([described, named])]
    empty = {"name": marked.word("function"), "parameters": {"type": "object"}}
    return [
        described,
        named,
        {"type": "function", "function": empty},
        {"type": "function", "function": {"name": marked.word("function")}},
    ]


def _odd_tools(marked: Marked) -> list[dict[str, Any]]:
    """Return a function whose parameters have every kind of type that callers send."""
    described = tool(marked)
    described["function"]["parameters"]["properties"] |= {
        "nullable": {"type": ["string", "null"], "description": "a text"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "choice": {"enum": ["a", "b"]},
        "any": {},
        "unknown": {"type": "str"},
        "list": {"type": "array"},
        "objects": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}},
        },
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "referred": {"$ref": "#/$defs/x"},
    }
    return [described]


def _all_tools(marked: Marked) -> list[dict[str, Any]]:
    return [*_one_tool(marked), *_bare_tools(marked), *_odd_tools(marked)]


_REASONING = {  # the keys in `REASONING_KEYS`, then parts
    "reasoning_content": "as reasoning_content",
    "reasoning": "as reasoning",
    "thinking": "as thinking",
    "thought": "as thought",
    "part": "as a part of the content",
    "parts": "as a part of the content that holds parts",
}

_BLANK_USER, _BLANK_ANSWER = TurnOutline("user", "blank"), TurnOutline("assistant", "blank")
_TEXT_AND_CALL = _calls("arguments", text="text")
_TWO_CALLS = (_calls("arguments", "arguments"), _RESULT, _result(1))
_EVERY_ARGUMENT = (_calls("every type"), _RESULT)
_NO_ARGUMENT = (_calls("no arguments"), _RESULT)
_ODD_ARGUMENTS = (_calls("no object"), _RESULT)

_TEXTS = (
    _Question(
        "texts of user and assistant",
        [(_U,), (_U, _A, _U)],
        [
            (_AS_IS, ""),
            ({"parts": _ALL_ROLES}, "content as parts"),
            ({"parts": frozenset({"user"})}, "the user's content as parts"),
            ({"parts": frozenset({"assistant"})}, "the assistant's content as parts"),
            ({"empty_tools": True}, "with an empty list of tools"),
        ],
    ),
    _Question(
        _SYSTEM_NAME,
        [(_S, _U), (_S, _U, _A, _U)],
        [
            (_AS_IS, ""),
            ({"parts": _ALL_ROLES}, "content as parts"),
            ({"parts": frozenset({"system", "user"})}, "content as parts"),
            ({"parts": frozenset({"user", "assistant", "tool"})}, "its content as a text"),
            ({"system": "user"}, "in the user's text"),
        ],
    ),
    _Question(
        "system messages twice and in the middle",
        [(_S, _S, _U, _S, _A, _S, _U, _S)],
        [(_AS_IS, ""), ({"system": "first"}, "appended to the first")],
        applies=lambda form: form.system == "anywhere",
    ),
    _Question(
        "two turns of one role in a row",
        [(_U, _U, _A, _A, _U)],
        [(_AS_IS, ""), ({"joins": True}, "joined")],
    ),
    _Question(
        "a conversation begun by the assistant",
        [(_A, _U)],
        [
            (_AS_IS, ""),
            ({"opens_with_user": ""}, "after an empty turn of the user"),
            ({"opens_with_user": " "}, "after a blank turn of the user"),
        ],
    ),
    _Question(
        "an empty turn",
        [(_U, _BLANK_ANSWER, _U), (_BLANK_USER, _A, _U)],
        [(_AS_IS, ""), ({"drops_blank": True}, "left out")],
    ),
)
_NAMES = _Question(
    "names of authors",
    [tuple(turn._replace(name="needed") for turn in (_S, _U, _A, _U, _A, _U))],
    [(_AS_IS, ""), ({"names": "text"}, "at the beginning of their texts")],
    about=frozenset({"name"}),
)
_OF_FUNCTIONS = frozenset({"function", "description", "parameter"})
_ELSEWHERE: Sequence[tuple[Change, str]] = [  # than the form `every` gives functions
    ({"tools": "system_list"}, "as a list under the system message's key tools"),
    ({"tools": "text"}, "described in the text"),
]
_FUNCTIONS = (
    _Question(
        _FUNCTIONS_NAME,
        [(_U,), (_S, _U)],
        [
            (_AS_IS, ""),
            ({"tools": "xml_tools"}, "in the variable xml_tools"),
            ({"tools": "system_json"}, "as JSON under the system message's key tools"),
            *_ELSEWHERE,
        ],
        tools=_one_tool,
        about=_OF_FUNCTIONS,
    ),
    _Question(
        "functions without description or parameters",
        [(_U,)],
        [
            (_AS_IS, ""),
            ({"fills_description": True}, "with an empty description"),
            ({"fills_parameters": True}, "with empty parameters"),
            ({"fills_description": True, "fills_parameters": True}, "with empty ones"),
        ],
        tools=_bare_tools,
        about=_OF_FUNCTIONS,
        applies=_by_template,
    ),
    _Question(
        "nullable and unknown types of parameters",
        [(_U,)],
        [(_AS_IS, ""), ({"simple_types": True}, "reduced to one type")],
        tools=_odd_tools,
        about=_OF_FUNCTIONS,
        applies=_by_template,
    ),
)
_FIRST_CALL_FORMS = 6
"""The forms of calls that reveal a template that ignores them."""


class _Group(NamedTuple):
    """Questions that one rendering may answer together.

    Attributes:
        together: the conversations of all, tried first.
    """

    together: _Question
    questions: Sequence[_Question | _Group]

    def leaves(self) -> Iterator[_Question]:
        """Yield the questions, including those of nested groups."""
        for each in self.questions:
            yield from each.leaves() if isinstance(each, _Group) else (each,)


_ARGUMENTS = _Group(
    _Question("", [(_U, *_EVERY_ARGUMENT, *_NO_ARGUMENT, *_ODD_ARGUMENTS)], applies=_native),
    (
        _Question(
            "arguments of every type",
            [(_U, *_EVERY_ARGUMENT)],
            [
                (_AS_IS, ""),
                ({"arguments": "texts"}, "as texts"),
                ({"arguments": "text"}, "as JSON text"),
            ],
            applies=_native,
        ),
        _Question(
            "no arguments",
            [(_U, *_NO_ARGUMENT)],
            [(_AS_IS, ""), ({"arguments": "text"}, "as JSON text")],
            applies=_native,
        ),
        _Question(
            "arguments that are no object",
            [(_U, *_ODD_ARGUMENTS)],
            [(_AS_IS, ""), ({"odd_arguments": "object"}, "within an object")],
            applies=_native,
        ),
    ),
)
_CALLS = (
    _Question(
        "a call beside a text",
        [(_U, _TEXT_AND_CALL, _RESULT)],
        [(_AS_IS, ""), ({"splits_text": True}, "in a turn of its own")],
    ),
    _Question(
        "two calls in one turn",
        [(_U, *_TWO_CALLS)],
        [
            (_AS_IS, ""),
            ({"one_call": True}, "each in a turn of its own, followed by its result"),
        ],
    ),
    _Question(
        "a result, then the user",
        [(_U, _CALL, _RESULT, _U)],
        [
            (_AS_IS, ""),
            ({"joins": True}, "joined"),
            ({"after_result": ""}, "after an empty turn of the assistant"),
            ({"after_result": " "}, "after a blank turn of the assistant"),
        ],
    ),
    _ARGUMENTS,
    _Question(
        "a result without its call",
        [(_U, _A, _result(None), _U)],
        [
            (_AS_IS, ""),
            ({"orphans": "user"}, "as the user's text"),
            ({"orphans": "user", "joins": True}, "as the user's text, joined"),
        ],
        applies=_native,
    ),
)
_BESIDE_FUNCTIONS = _Question(
    "calls and results beside functions",
    [(_U, _CALL, _RESULT, _A, _U)],
    [(_AS_IS, ""), ({"tools": "text"}, "functions described in the text")],
    tools=_one_tool,
)


_TEXT_GROUP = _Group(
    _Question(
        "",
        [
            (_U,),
            (_S, _S, _U, _S, _A, _S, _U, _U, _A, _A, _U, _BLANK_ANSWER, _BLANK_USER, _A, _U, _S),
            (_A, _U),
        ],
    ),
    _TEXTS,
)
_FUNCTION_GROUP = _Group(_Question("", [(_U,), (_S, _U)], tools=_all_tools), _FUNCTIONS)
_CALL_GROUP = _Group(
    _Question(
        "",
        [
            (
                *(_U, _TEXT_AND_CALL, _RESULT, *_TWO_CALLS, *_EVERY_ARGUMENT, *_NO_ARGUMENT),
                *(*_ODD_ARGUMENTS, _U, _CALL, _RESULT, _A, _result(None), _U),
            )
        ],
        tools=_one_tool,
    ),
    (*_CALLS, _BESIDE_FUNCTIONS),
)

_THOUGHTS = _calls("arguments", text="text", reasons=True)
_REASONING_EVERYWHERE: Sequence[Outline] = (
    (
        *(_U, _THINKS, _U, _CALL_THINKS, _RESULT, _THOUGHTS, _RESULT, _A),
        *(_U, _CALL_THINKS, _RESULT, _THOUGHTS, _RESULT),
    ),
    (_U, _THINKS),
)
_FIRST_PLACES: tuple[tuple[str, Outline], ...] = (
    ("call", (_U, _CALL_THINKS, _RESULT)),
    ("answer", (_U, _THINKS)),
)
_OTHER_PLACES: tuple[tuple[str, Outline], ...] = (
    ("text and call", (_U, _THOUGHTS, _RESULT)),
    ("earlier answer", (_U, _THINKS, _U)),
    ("earlier call", (_U, _CALL_THINKS, _RESULT, _A, _U)),
    ("earlier text and call", (_U, _THOUGHTS, _RESULT, _A, _U)),
)


_MAX_KEPT_CHARACTERS = 1 << 16
"""Maximum length of a cached prompt; a template may lengthen a probe a thousandfold."""

_NOT_ASKED = "not asked: the template takes too long"


class _Probe:
    """Asks the questions for one model's templates."""

    def __init__(
        self, templates: Templates, variables: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        self._templates = templates
        self._variables = variables
        self._clock = clock
        self._began_s = clock()
        self._renders = 0
        self._known: dict[str, tuple[str, str | None]] = {}
        self._failure = ""
        self.form = Form()
        self.answers: list[Answer] = []

    def render(self, written: Written, **options: bool) -> str:
        """Render a written conversation.

        Short ones that several questions share are rendered once.
        """
        key = repr((written, options))
        if key in self._known:
            prompt, message = self._known[key]
        else:
            prompt, message = "", None
            self._renders += 1
            try:
                prompt = render_written(self._templates, written, self._variables, **options)
            except InvalidRequest as error:
                message = error.message  # the error itself would keep its callers alive
            if len(prompt) <= _MAX_KEPT_CHARACTERS:
                self._known[key] = prompt, message
        if message is not None:
            raise InvalidRequest(message)
        return prompt

    @property
    def took_s(self) -> float:
        return self._clock() - self._began_s

    def _is_slow(self) -> bool:
        return self.took_s > MAX_PROBE_S

    def ask_all(self, group: _Group) -> None:
        """Ask the questions of a group."""
        if not group.together.applies(self.form):
            return
        if not self._is_slow() and all(
            outcome.shows_all and not outcome.blemishes
            for outcome in map(self._attempt, group.together.conversations())
        ):
            for question in group.leaves():
                self._note(question.name, "shown", is_shown=True)
            return
        for each in group.questions:
            if isinstance(each, _Group):
                self.ask_all(each)
            else:
                self.ask(each)

    def ask_about_functions(self) -> None:
        """Ask how functions are passed; if a template ignores them, do not ask for each place."""
        question, *others = _FUNCTIONS
        conversation = question.conversations()[0]
        outcome = self._attempt(conversation, replace(self.form, tools=EVERY))
        if outcome.error or len(outcome.lost) < len(conversation.marks):
            self.ask_all(_FUNCTION_GROUP)
            return
        self.ask(replace(question, changes=_ELSEWHERE))
        for other in others:
            self.ask(other)

    def ask_about_calls(self) -> None:
        """Ask how calls are written: by the template, or into the text."""
        best = None
        for template in ("tools", "calls") if "tool_use" in self._templates else ("tools",):
            best = best or self._best_call({"tool_template": template})
        if best is None:
            knows_tools = self.form.tools == "variable"
            best = self._best(self._one_call(), _IN_TEXT[0 if knows_tools else 2 :])
        self._keep(_CALL_NAME, best)

    def _best_call(self, template: Change) -> tuple[Form, str] | None:
        conversations = self._one_call()
        changes = [({**template, **change}, words) for change, words in _call_changes()]
        first, others = changes[:_FIRST_CALL_FORMS], changes[_FIRST_CALL_FORMS:]
        # Ids and names matter to templates that support functions.
        return self._best(conversations, first, others if self.form.tools != "text" else ())

    def _one_call(self) -> list[Marked]:
        """Return a call and its result, with functions if the template supports them."""
        return [mark((_U, _CALL, _RESULT), with_tools=self.form.tools != "text")]

    def ask(self, question: _Question) -> None:
        """Ask a question, and apply the change of the form that answers it best."""
        if question.applies(self.form):
            self._keep(question.name, self._best(question.conversations(), question.changes))

    def _best(
        self,
        conversations: Sequence[Marked],
        changes: Sequence[tuple[Change, str]],
        others: Sequence[tuple[Change, str]] | None = None,
    ) -> tuple[Form, str] | None:
        """Return the first form that shows everything, with the fewest defects, and its words.

        Changes that have no effect on their own are not combined.

        Args:
            others: further changes, for a template that shows part of calls, but not all in any of
                the first forms.
        """
        best: tuple[int, Form, str] | None = None
        tried: set[Form] = set()
        rendered: list[bool] = []
        as_first: set[frozenset[tuple[str, Any]]] = set()
        first: list[Outcome] = []
        self._failure = ""
        for place, (change, words) in enumerate([*changes, *(others or ())]):
            ignores_calls = bool(rendered) and not any(rendered)
            if place == len(changes) and (best or ignores_calls):
                break
            form = replace(self.form, **change)
            parts = frozenset(change.items() - changes[0][0].items())
            is_hopeless = all(parts - {part} in as_first for part in parts)
            if len(parts) > 1 and (is_hopeless or (others is not None and ignores_calls)):
                as_first.add(parts)
                continue
            if form in tried:
                continue
            tried.add(form)
            if self._is_slow():
                self._failure = self._failure or _NOT_ASKED
                break
            outcomes = self._attempt_each(conversations, form)
            first = first or outcomes
            if outcomes == first:
                as_first.add(parts)
            rendered += [each.shows_calls for each in outcomes if each.error is None]
            if not outcomes[-1].shows_all:
                self._failure = self._failure or _failure(outcomes)
                continue
            blemishes = sum(outcome.blemishes for outcome in outcomes)
            if best is None or blemishes < best[0]:
                best = (blemishes, form, words)
            if not blemishes:
                break
        return best[1:] if best else None

    def _attempt_each(self, conversations: Sequence[Marked], form: Form) -> list[Outcome]:
        """Render conversations up to the first one that is not shown."""
        outcomes = []
        for marked in conversations:
            outcomes.append(self._attempt(marked, form))
            if not outcomes[-1].shows_all:
                break
        return outcomes

    def _keep(self, name: str, best: tuple[Form, str] | None) -> None:
        if best is None:
            self._note(name, self._failure, is_shown=False)
        else:
            self.form, words = best
            self._note(name, words or "shown", is_shown=True)

    def _attempt(self, marked: Marked, form: Form | None = None) -> Outcome:
        return attempt(self.render, marked, form or self.form)

    def find_reasoning(self) -> frozenset[str]:
        """Find the key of reasoning, and the positions where it is rendered."""
        if self._is_slow():
            self._note(_REASONING_NAME, _NOT_ASKED, is_shown=False)
            return frozenset()
        every = replace(self.form, reasoning=EVERY)
        places, error = self._ask_everywhere(every, until_found=True)
        plain_error = error and self._ask_everywhere(replace(self.form, reasoning=""))[1]
        reads_keys = self._may_show_somewhere(every) if error else bool(places)
        for key, words in _REASONING.items():
            if self._is_slow():
                break
            if key in REASONING_KEYS and not reads_keys:
                continue
            form = replace(self.form, reasoning=key)
            error = plain_error
            if not error:
                places, error = self._ask_everywhere(form)
            if error:
                places = self._ask_each_place(form)
            if places:
                self.form = form
                shown = ", ".join(sorted(places))
                self._note(_REASONING_NAME, f"{words}, of: {shown}", is_shown=True)
                return frozenset(places)
        self._note(_REASONING_NAME, "not shown", is_shown=False)
        return frozenset()

    def _may_show_somewhere(self, form: Form) -> bool:
        """Return False if reasoning is accepted in the usual positions and not rendered."""
        first = (self._attempt(mark(outline), form) for _, outline in _FIRST_PLACES)
        return any(outcome.error or outcome.shows_all for outcome in first)

    def _ask_everywhere(
        self, form: Form, *, until_found: bool = False
    ) -> tuple[set[str], str | None]:
        """Return where reasoning is rendered, or a template's error if it refuses it somewhere."""
        places: set[str] = set()
        for outline in _REASONING_EVERYWHERE:
            marked = mark(outline)
            outcome = self._attempt(marked, form)
            if outline is _REASONING_EVERYWHERE[0] and not outcome.shows_texts:
                return places, outcome.error
            places |= {mark.where for mark in marked.marks if mark not in outcome.lost} - {""}
            if until_found and places:
                break
        return places, None

    def _ask_each_place(self, form: Form) -> set[str]:
        """Find where a template that does not accept reasoning everywhere renders it."""
        found: set[str] = set()
        for place, outline in _FIRST_PLACES:
            outcome = self._attempt(mark(outline), form)
            if outcome.error and not found:
                return found
            if outcome.shows_all:
                found.add(place)
        if not found:
            return found
        split = replace(form, splits_text=True)
        for place, outline in _OTHER_PLACES:
            conversation = mark(outline)
            if any(self._attempt(conversation, each).shows_all for each in (form, split)):
                found.add(place)
        return found

    def find_continuing(self) -> bool:
        """Find out whether a prompt can end with the text of the last message."""
        marked = mark((_U, _A))
        if self._is_slow():
            self._note(_CONTINUING_NAME, _NOT_ASKED, is_shown=False)
            return False
        try:
            prompt = self.render(
                write(marked.turns, None, self.form),
                add_generation_prompt=False,
                continue_final_message=True,
            )
        except InvalidRequest as error:
            self._note(_CONTINUING_NAME, _reason(error.message), is_shown=False)
            return False
        continues = prompt.endswith(marked.marks[-1].word)
        words = "shown" if continues else "something follows its text"
        self._note(_CONTINUING_NAME, words, is_shown=continues)
        return continues

    def _note(self, question: str, answer: str, *, is_shown: bool) -> None:
        self.answers.append(Answer(question, answer, is_shown, self._renders))
        self._renders = 0


def _failure(outcomes: Iterable[Outcome]) -> str:
    for outcome in outcomes:
        if outcome.error is not None:
            return _reason(outcome.error)
        if outcome.lost:
            kinds = dict.fromkeys(lost.what for lost in outcome.lost)
            return f"not shown: {', '.join(kinds)}"
    return "not shown"


def _reason(message: str) -> str:
    return f"refused: {message.partition(': ')[2] or message}"


def probe(
    templates: Templates,
    variables: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> Shape:
    """Find out what a model's chat template renders.

    Args:
        templates: at least `default`.
        variables: variables for every rendering, such as `bos_token`.
    """
    asking = _Probe(templates, variables, clock)
    asking.ask_all(_TEXT_GROUP)
    asking.ask(_NAMES)
    asking.ask_about_functions()
    asking.ask_about_calls()
    asking.ask_all(_CALL_GROUP)
    places = asking.find_reasoning()
    continues = asking.find_continuing()
    return Shape(
        asking.form,
        places,
        continues,
        tuple(asking.answers),
        asking.took_s,
    )
