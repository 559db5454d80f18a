"""Findings about templates, each written here for one trait."""

from __future__ import annotations

import gc
import logging
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.template_server import TemplateServer

from trtllm_truss.conversation import probing
from trtllm_truss.conversation import templates as templates_module
from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.probing import MAX_PROBE_S, Shape, probe
from trtllm_truss.conversation.templates import ModelTemplates
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% endfor %}"
CALLS = (
    "{{ tools | tojson if tools else '' }}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}{% endfor %}"
    "{{ '<assistant>' if add_generation_prompt else '' }}"
)


def shape_of(template: str) -> Shape:
    return probe({"default": ChatTemplate(template)}, {"bos_token": "<s>"})


def renders_of(template: str, question: str) -> int:
    return next(each.renders for each in shape_of(template).answers if each.question == question)


def test_names_are_written_where_the_template_shows_none() -> None:
    assert shape_of(CALLS).form.names == "text"
    assert shape_of(CALLS.replace("m.role }}", "m.name or m.role }}")).form == Form()


def test_changes_without_effect_are_not_tried_together() -> None:
    """Of 36 forms of a call the seven with one change, and those with the ids that matter."""
    long_ids = (
        "{% if m.tool_calls and m.tool_calls[0].id | length != 9 %}{{ raise_exception('id') }}"
    )
    template = CALLS.replace("<{{ m.role }}>", f"<{{{{ m.role }}}}>{long_ids}{{% endif %}}")
    assert shape_of(template).form.ids == "short"
    assert renders_of(template, "a call and its result") <= 7


def test_what_a_template_ignores_is_asked_in_all_places_at_once() -> None:
    assert renders_of(PLAIN, "functions") <= 4
    assert renders_of(CALLS, "reasoning") <= 6


def test_a_template_that_shows_all_is_written_as_transformers_does() -> None:
    shape = shape_of(CALLS)
    assert shape.form == Form(names="text")  # the only thing that it does not show
    assert all(answer.is_shown for answer in shape.answers if answer.question != "reasoning")
    assert shape.renders <= 20


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
            {"parts": frozenset({"system", "user", "assistant", "tool"})},
        ),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
            + PLAIN,
            {"system": "user"},
        ),
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('first') }}{% endif %}{{ m.content }}{% endfor %}",
            {"system": "first"},
        ),
        (
            "{% for m in messages %}{% if (m.role == 'user') == (loop.index0 % 2 == 1) %}"
            "{{ raise_exception('alternate') }}{% endif %}{{ m.content }}{% endfor %}",
            {"joins": True, "opens_with_user": "", "calls": "text", "results": "user"},
        ),
        (
            CALLS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
            {"one_call": True},
        ),
        (
            CALLS.replace("c.function.arguments | tojson", "'' + c.function.arguments"),
            {"arguments": "text"},
        ),
        (
            CALLS.replace("{{ m.content or '' }}", "{{ m.content + '' }}"),
            {"blank": "empty"},
        ),
        (
            CALLS.replace("{{ m.content or '' }}", "{{ '' if m.tool_calls else m.content }}"),
            {"splits_text": True},
        ),
        (
            CALLS.replace("[{{ c.function.name }}", "[{{ c.id }}"),
            {"ids": "functions"},
        ),
        (
            CALLS.replace("{% for c in", "{{ m.thinking or '' }}{% for c in"),
            {"reasoning": "thinking"},
        ),
        (
            CALLS.replace("tools | tojson if tools else ''", "messages[0].tools or ''"),
            {"tools": "system_json"},
        ),
        (
            CALLS.replace("tools | tojson if tools", "tools[0].function.description + '' if tools"),
            {"tools": "text"},
        ),
        (PLAIN, {"calls": "text", "results": "user", "tools": "text"}),
    ],
)
def test_a_trait_is_found(template: str, found: dict[str, Any]) -> None:
    form = shape_of(template).form
    assert {name: getattr(form, name) for name in found} == found


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("{{ raise_exception('never') }}", "refused: never"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused: RecursionError"),
        ("nothing", "not shown: text"),
    ],
)
def test_a_template_that_shows_nothing_is_described(template: str, answer: str) -> None:
    first = shape_of(template).answers[0]
    assert (first.is_shown, first.answer) == (False, answer)


def test_a_slow_template_is_not_asked_for_long() -> None:
    class Slow:
        renders = 0

        def render(self, messages: Sequence[Any], variables: Any) -> str:
            self.renders += 1
            return ""

        render_open = render

    slow = Slow()
    shape = probe({"default": slow}, {}, lambda: slow.renders * MAX_PROBE_S / 2)
    assert slow.renders < 20
    assert shape.form == Form()
    assert "takes too long" in shape.answers[1].answer


HEAVY = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "hostile",
    [
        f"{{% if messages | length > 1 %}}{HEAVY}{{% endif %}}",
        "{% if messages | length > 1 %}{{ 'x' * 1000000000 }}{% endif %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{% if messages | length > 1 %}{{ f() }}{% endif %}",
    ],
)
def test_a_hostile_template_ends_neither_a_start_nor_the_server(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "MAX_PROBE_S", 0.2)
    monkeypatch.setattr(templates_module, "MAX_SEARCH_S", 0.2)
    templates = ModelTemplates({"default": ChatTemplate(PLAIN + hostile)}, {})
    renders = templates.shape.renders
    assert renders < 200
    turns = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "critic")]
    with pytest.raises(InvalidRequest) as refused:
        list(templates.written(turns, [{"type": "function", "function": {"name": "f"}}]))
    assert refused.value.param == "messages"


def test_long_prompts_are_not_kept() -> None:
    """A probe renders a conversation in twenty forms and more."""
    length = 1 << 20
    long = {"default": ChatTemplate(PLAIN + f"{{{{ 'x' * {length} }}}}")}
    tracemalloc.start()
    try:
        shape = probe(long, {})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shape.renders > 10
    assert peak_bytes < 6 * length


def test_a_marked_turn_shows_how_calls_are_written() -> None:
    templates = ModelTemplates({"default": ChatTemplate(CALLS)}, {})
    turn = templates.marked_turn(2)
    assert turn is not None
    assert turn.header == "<assistant>"
    calls = "".join(
        f'[{name} {{"{key}": "{value}"}}]'
        for name, arguments in turn.calls
        for key, value in arguments.items()
    )
    assert turn.text.startswith(turn.header + calls)
    beside = templates.marked_turn(1, with_text=True)
    assert beside is not None
    assert beside.text.startswith(f"<assistant>{beside.content}[{beside.calls[0][0]} ")


def test_a_template_without_calls_has_no_marked_turn() -> None:
    templates = ModelTemplates({"default": ChatTemplate(PLAIN)}, {})
    assert templates.marked_turn() is None
    plain = templates.marked_turn(0, with_text=True)
    assert plain is not None
    assert plain.text == f"<assistant>{plain.content}"


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{{ unknown.x.y }}"])
def test_what_asks_is_not_kept_alive(template: str) -> None:
    """A stored exception keeps the frames of its callers and their data alive."""

    class Caller:
        def __init__(self) -> None:
            self.templates = ModelTemplates({"default": ChatTemplate(template)}, {})
            self.found = self.templates.shape

    gc.disable()
    try:
        caller = Caller()
        assert not caller.found.answers[0].is_shown
        gone = weakref.ref(caller)
        del caller
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (CALLS, "system messages in their place; functions; calls; no reasoning"),
        (PLAIN, "functions described in the text; calls as text"),
        ("{{ messages[0].content }}", "in no form: texts of user and assistant"),
        (
            CALLS.replace("{% for c in", "{{ m.thinking or '' }}{% for c in"),
            "reasoning as thinking (answer, call, earlier answer, earlier call",
        ),
    ],
)
def test_a_start_says_what_the_template_shows(
    template: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    TemplateServer(template)
    line, *_ = [each for each in caplog.messages if each.startswith("the chat template shows")]
    assert words in line
    assert "\n" not in line
