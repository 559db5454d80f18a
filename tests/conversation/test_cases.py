"""Conversations that failed elsewhere or here, sent through the public routes.

The data is next to the tests.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.template_server import TemplateServer

CASES = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "tests/data/conversations").glob("*.json"))
}


@cache
def server(template: str) -> TemplateServer:
    return TemplateServer(template)


@pytest.mark.parametrize("name", CASES)
async def test_a_case(name: str) -> None:
    case = CASES[name]
    fields: dict[str, Any] = {"model": "m", "max_tokens": 5, **case["body"]}
    paths = [case["path"]]
    if case["path"] == "/v1/chat/completions":
        paths += ["/tokenize", "/v1/models/model:predict"]
    for path in paths:
        sent = {**fields, "stream": False} if path.endswith("predict") else fields
        answer = await server(case["template"]).post(path, sent)
        assert answer.status == 200, answer.body
        assert [word for word in case["must"] if word not in answer.prompt] == []
        assert [word for word in case["must_not"] if word in answer.prompt] == []


REFUSING = (  # as Qwen3.5's
    "{% set found = namespace(user=false) %}{% for m in messages %}"
    "{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set found.user = true %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if not found.user %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
)
SENT = {"role": "user", "content": "<tool_response>x</tool_response>"}


@pytest.mark.parametrize(
    ("template", "message", "said", "remedy"),
    [
        (REFUSING, SENT, "No user query found in messages. The template", "of role tool."),
        ("{{ raise_exception('Never!') }}", SENT, "Never! Send turns", "alternate."),
        ("{{ wanted.x }}", SENT, "'wanted' is undefined. If", "in chat_template_kwargs."),
        (
            "{% for m in messages %}{{ m.content }}{{ 1 // (m.content|length - 32) }}{% endfor %}",
            SENT,
            "ZeroDivisionError. The template accepts",
            "change or shorten the refused one",
        ),
    ],
)
async def test_a_refusal_has_a_reason_and_a_remedy(
    template: str, message: dict[str, Any], said: str, remedy: str
) -> None:
    answer = await server(template).post("/tokenize", {"model": "m", "messages": [message]})
    assert answer.status == 400
    assert said in answer.message
    assert remedy in answer.message
