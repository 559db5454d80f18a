"""Vercel's AI SDK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.clients import page
from tests.clients.scripted import AGAIN, KNOWN, QUESTION, READ, RESULT

NodeExample = Callable[[str, str], Any]
TITLE = "Vercel's AI SDK"
CITIES = ("Oslo", "Paris", "Rome")


def test_the_page(node_example: NodeExample) -> None:
    ran = node_example(
        TITLE, "{ steps: text.steps, text: text.text, object: object.object, usage: object.usage }"
    )
    first, second = ran["steps"]
    assert first["finishReason"] == "tool-calls"
    call, result = first["content"][-2:]
    assert call["type"] == "tool-call"
    assert call["input"]["city"] in CITIES
    assert result["toolCallId"] == call["toolCallId"]
    assert result["output"] == {"degrees": 21}
    assert second["finishReason"] in ("stop", "length")
    assert ran["text"]
    assert ran["object"]["city"] in CITIES
    assert ran["object"].keys() == {"city", "unit"}
    assert ran["usage"]["outputTokens"] > 5


def test_a_streamed_call(node_example: NodeExample) -> None:
    ran = node_example(
        TITLE,
        "await (async () => {"
        "  const { streamText } = await import('ai');"
        "  const stream = streamText({ ...asked, tools: { weather }, toolChoice: 'required' });"
        "  const parts = [];"
        "  for await (const part of stream.fullStream) parts.push(part);"
        "  return parts; })()",
    )
    kinds = [part["type"] for part in ran]
    assert kinds.count("tool-input-delta") > 1
    assert "error" not in kinds
    (call,) = (part for part in ran if part["type"] == "tool-call")
    assert call["input"]["city"] in CITIES


def test_openais_provider_uses_responses(node_example: NodeExample) -> None:
    ran = node_example(
        TITLE,
        "await (async () => {"
        "  const { createOpenAI } = await import('@ai-sdk/openai');"
        "  const openai = createOpenAI({ baseURL: 'http://localhost:8080/v1', apiKey: 'none' });"
        "  const tools = { weather };"
        "  const model = openai('any');"
        "  const ran = await generateText({ ...asked, model, tools, toolChoice: 'required' });"
        "  return { calls: ran.toolCalls, results: ran.toolResults, usage: ran.usage }; })()",
    )
    (call,), (result,) = ran["calls"], ran["results"]
    assert call["input"]["city"] in CITIES
    assert result["toolCallId"] == call["toolCallId"]
    assert ran["usage"]["outputTokens"] > 5


_TWO_TURNS = """
import {{ createOpenAI }} from "@ai-sdk/openai";
import {{ generateText, stepCountIs, tool }} from "ai";
import {{ z }} from "zod";

const openai = createOpenAI({{ baseURL: "http://localhost:8080/v1", apiKey: "none" }});
const say = tool({{ inputSchema: z.object({{}}), execute: async () => "{result}" }});
const providerOptions = {{ openai: {{ store: false }} }};
const asked = {{ model: {model}, tools: {{ say }}, stopWhen: stepCountIs(3), providerOptions }};
const messages = [{{ role: "user", content: "{question}" }}];
const first = await generateText({{ ...asked, messages }});
messages.push(...first.response.messages, {{ role: "user", content: "{again}" }});
const second = await generateText({{ ...asked, messages }});
"""


@pytest.mark.parametrize("model", ['openai.chat("any")', 'openai("any")'])
def test_a_tool_and_a_second_turn(scripted: str, tmp_path: Path, model: str) -> None:
    text = _TWO_TURNS.format(result=RESULT, question=QUESTION, again=AGAIN, model=model)
    assert page.run_js(text, "[first.text, second.text]", scripted, tmp_path) == [READ, KNOWN]
