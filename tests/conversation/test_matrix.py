"""Every template of tests/data/templates × every conversation: no text is lost, none refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.template_server import TemplateServer
from tools.template_matrix.conversations import CONVERSATIONS
from tools.template_matrix.matrix import Row, rows_of

ROWS = {row.name: row for row in rows_of(ROOT / "tests/data/templates")}
LIKE_ANOTHER = {
    *("deepseek-r1-distill-qwen", "deepseek-v2", "deepseek-v3", "ernie-4.5", "exaone-3.5"),
    *("glm-4-9b", "glm-4.7", "granite-4", "internlm2", "llama-2", "llama-3", "llama-3.3"),
    *("mistral-7b-v0.1", "mistral-nemo", "mistral-small-3.1", "olmo-2", "phi-3.5", "phi-4"),
    *("qwen2.5", "qwen3", "qwen3-instruct-2507", "qwen3-thinking-2507", "smollm2", "smolvlm"),
    *("solar", "step-3.5", "vicuna", "zephyr"),
}
"""Templates whose row in docs/models.md has the same cells as another one."""

EACH = [
    pytest.param(name, marks=[pytest.mark.thorough] if name in LIKE_ANOTHER else [])
    for name in ROWS
]


@cache
def server(name: str) -> TemplateServer:
    return TemplateServer(ROWS[name].sources)


def test_there_are_templates_of_many_families() -> None:
    assert len(ROWS) >= 60
    assert len(CONVERSATIONS) >= 22


PATHS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/tokenize", {}),
    "messages": ("/v1/messages", {"model": "m", "max_tokens": 5}),
    "responses": ("/v1/responses", {"model": "m", "max_output_tokens": 16}),
}


@pytest.mark.parametrize("name", EACH)
async def test_all_texts_reach_the_prompt(name: str) -> None:
    """Through the public routes; `transformers` loses or refuses a third of these."""
    row: Row = ROWS[name]
    for conversation in CONVERSATIONS:
        path, fields = PATHS[conversation.api]
        answer = await server(name).post(path, {**fields, **conversation.body})
        assert answer.status == 200, (conversation.name, answer.body)
        wanted = [*conversation.words, *row.shown_reasoning(conversation)]
        assert [word for word in wanted if word not in answer.prompt] == [], conversation.name


RULES = {
    "content in parts",
    "arguments null and blank",
    "ids used again",
    "calls without ids, one unanswered",
}
"""Parts are joined by line breaks, null or blank arguments are an empty object, lists stay text,
and each call has a unique id."""

DIFFERING = [
    *product(("apriel-1.5", "gpt-oss", "magistral", "ministral-3"), ["reasoning"]),  # other names
    ("gpt-oss", "steps"),
    ("nemotron-nano-v2", "markers"),  # the user's `/think` in `</think>` is no switch
    *product(("ministral-3", "mistral-small-3.2"), ["a result without its call"]),  # its id
]
"""Families, and the prefixes of the conversations that differ there from `transformers`."""


@pytest.mark.parametrize("name", EACH)
def test_what_transformers_shows_whole_is_rendered_as_there(name: str) -> None:
    cells = ROWS[name].cells
    differing = {
        each for each, cell in cells.items() if cell.reference == "whole" and not cell.equals
    }
    assert {each for each in differing - RULES if not each.startswith(_allowed(name))} == set()


def _allowed(name: str) -> tuple[str, ...]:
    return tuple(kind for family, kind in DIFFERING if family == name)
