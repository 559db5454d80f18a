"""Conversations that failed elsewhere or here, through the public routes; data beside the tests."""

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
