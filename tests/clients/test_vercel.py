"""Vercel's AI SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
