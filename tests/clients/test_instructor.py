"""Instructor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import instructor
import openai
import pytest

Example = Callable[..., dict[str, Any]]


def test_the_page(example: Example) -> None:
    ran = example("Instructor")
    assert isinstance(ran["weather"], ran["Weather"])


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA"])
def test_every_mode(base_url: str, example: Example, mode: str) -> None:
    ran = example("")
    client = instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=0),
        mode=instructor.Mode[mode],
    )
    question = ran["QUESTION"]
    if mode == "JSON":  # the keys are the model's choice
        question += ' Answer exactly {"city": "Paris", "unit": "celsius"}'
    weather, whole = client.chat.completions.create_with_completion(
        model="any",
        response_model=ran["Weather"],
        messages=[{"role": "user", "content": question}],
        max_retries=0,
        max_tokens=100,
        temperature=0,
    )
    assert isinstance(weather, ran["Weather"])
    assert whole.usage.completion_tokens > 5


def test_parallel_tools(base_url: str, example: Example) -> None:
    """The model decides to call: earlier turns of the conversation show it how."""
    kind = example("")["Weather"]
    client = instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=0),
        mode=instructor.Mode.PARALLEL_TOOLS,
    )
    messages: list[Any] = []
    for cities in (("Rome", "Oslo"), ("Oslo", "Paris"), ("Oslo", "Rome")):
        calls = [
            {
                **{"id": f"call_{len(messages)}_{city}", "type": "function"},
                "function": {
                    "name": "Weather",
                    "arguments": json.dumps({"city": city, "unit": "celsius"}),
                },
            }
            for city in cities
        ]
        messages.append({"role": "user", "content": f"Weather in {' and '.join(cities)}?"})
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    messages.append({"role": "user", "content": "Weather in Paris and Rome?"})
    found = client.chat.completions.create(
        model="any",
        response_model=Iterable[kind],
        messages=messages,
        max_retries=0,
        max_tokens=120,
        temperature=0,
    )
    weathers = list(found)
    assert weathers
    assert all(isinstance(weather, kind) for weather in weathers)
