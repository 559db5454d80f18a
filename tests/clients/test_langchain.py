"""LangChain's client of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr
from tests.clients.scripted import AGAIN, KNOWN, QUESTION, READ, RESULT

Example = Callable[..., dict[str, Any]]
IN_JSON = ' Answer in JSON like {"city": "Rome", "unit": "celsius"}; another city is Paris.'


@pytest.fixture(scope="module")
def chat(base_url: str) -> ChatOpenAI:
    return ChatOpenAI(
        **{"base_url": base_url, "api_key": "none", "model": "any", "temperature": 0},
        max_completion_tokens=100,
        max_retries=0,
        stream_usage=True,
    )


def test_the_page(example: Example) -> None:
    ran = example("LangChain")
    (call,) = ran["first"].tool_calls
    assert call["name"] == "Weather"
    ran["Weather"].model_validate(call["args"])
    assert ran["results"][0].tool_call_id == call["id"]
    assert ran["first"].usage_metadata["output_tokens"] > 5
    assert ran["second"].content
    assert isinstance(ran["by_tool"], ran["Weather"])
    assert isinstance(ran["by_schema"], ran["Weather"])


@pytest.mark.parametrize(
    ("method", "strict"),
    [
        *(("function_calling", None), ("function_calling", True)),
        *(("json_schema", None), ("json_schema", True), ("json_mode", None)),
    ],
)
def test_every_method_of_structured_output(
    chat: ChatOpenAI, example: Example, method: Any, strict: bool | None
) -> None:
    ran = example("")
    structured = chat.with_structured_output(
        ran["Weather"], method=method, strict=strict, include_raw=True
    )
    answer = structured.invoke(ran["QUESTION"] + IN_JSON * (method == "json_mode"))
    assert isinstance(answer, dict)
    assert isinstance(answer["parsed"], ran["Weather"]), answer["parsing_error"]
    assert answer["raw"].usage_metadata["output_tokens"] > 5


def test_a_streamed_call(chat: ChatOpenAI, example: Example) -> None:
    ran = example("")
    caller = chat.bind_tools([ran["Weather"]], tool_choice="any", parallel_tool_calls=False)
    first, *others = list(caller.stream(ran["QUESTION"]))
    assert len(others) > 1
    for chunk in others:
        first += chunk
    (call,) = first.tool_calls
    ran["Weather"].model_validate(call["args"])
    assert call["id"]
    assert first.usage_metadata
    assert first.usage_metadata["output_tokens"] > 5


def test_responses(chat: ChatOpenAI, example: Example) -> None:
    ran = example("")
    responses = chat.model_copy(update={"use_responses_api": True})
    message = responses.bind_tools([ran["Weather"]], tool_choice="any").invoke(ran["QUESTION"])
    (call,) = message.tool_calls
    ran["Weather"].model_validate(call["args"])


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_an_agent_with_a_memory(scripted: str, responses: bool) -> None:
    @tool
    def say() -> str:
        """Print the words forty and two with a hyphen between them."""
        return RESULT

    llm = ChatOpenAI(
        base_url=f"http://{scripted}/v1",
        api_key=SecretStr("none"),
        model="any",
        use_responses_api=responses,
    )
    agent = create_agent(llm, [say], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    for question, answer in ((QUESTION, READ), (AGAIN, KNOWN)):
        asked: Any = {"messages": [("user", question)]}
        *_, last = agent.invoke(asked, thread)["messages"]
        assert last.text == answer
