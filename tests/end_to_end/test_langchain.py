"""LangChain's ChatOpenAI, if installed, against the real server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.truss_process import Served


@pytest.fixture
def chat(server: Served) -> Any:
    langchain_openai = pytest.importorskip("langchain_openai")  # imported late: it takes seconds
    return langchain_openai.ChatOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1",
        api_key="none",
        model="smollm2",
        temperature=0,
        max_retries=0,
        stream_usage=True,
    )


def test_it_answers_and_streams(chat: Any) -> None:
    whole = chat.invoke([("system", "Be brief."), ("human", "Say hello.")])
    assert "ello" in whole.content
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(chat.stream([("system", "Be brief."), ("human", "Say hello.")]))
    assert len(chunks) > 1
    assert "".join(chunk.content for chunk in chunks) == whole.content
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage[-1]["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_it_streams_asynchronously(chat: Any) -> None:
    chunks = [chunk async for chunk in chat.astream("Say hello.")]
    assert "ello" in "".join(chunk.content for chunk in chunks)
    await chat.root_async_client.close()  # LangChain keeps it beyond the event loop
