"""LiteLLM, by every provider that reaches this server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import litellm
import pytest
from litellm.llms.custom_httpx.http_handler import HTTPHandler

Example = Callable[..., dict[str, Any]]
OPENAI_LIKE = ("openai", "hosted_vllm", "baseten", "huggingface", "litellm_proxy")
PROVIDERS = (*OPENAI_LIKE, "sagemaker_chat")


class SageMakerFront(httpx.HTTPTransport):
    """Forwards requests for an endpoint to /invocations of its container, as SageMaker does."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._url = httpx.URL(f"http://{address}/invocations")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/endpoints/any/invocations"
        assert request.headers["Authorization"].startswith("AWS4-HMAC-SHA256 ")
        request.url, request.headers["Host"] = self._url, self._url.netloc.decode()
        return super().handle_request(request)


def asked(provider: str, address: str) -> dict[str, Any]:
    """The arguments that lead a provider to the server."""
    where: dict[str, Any] = {"api_base": f"http://{address}/v1", "api_key": "none"}
    if provider == "sagemaker_chat":
        where = {"client": HTTPHandler(client=httpx.Client(transport=SageMakerFront(address)))}
    return {**where, "model": f"{provider}/any", "max_tokens": 100, "temperature": 0}


def test_the_page(example: Example) -> None:
    ran = example("LiteLLM")
    (call,) = ran["message"].tool_calls
    ran["Weather"].model_validate_json(call.function.arguments)
    assert ran["messages"][-1]["tool_call_id"] == call.id
    assert ran["first"].usage.completion_tokens > 5
    assert ran["second"].choices[0].message.content


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_conversation_with_tools(example: Example, address: str, provider: str) -> None:
    ran = example("")
    options = asked(provider, address)
    schema = ran["Weather"].model_json_schema()
    options["tools"] = [{"type": "function", "function": {"name": "w", "parameters": schema}}]
    messages: list[Any] = [{"role": "user", "content": ran["QUESTION"]}]
    first = litellm.completion(messages=messages, tool_choice="required", **options)
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.usage.completion_tokens > 5
    message = first.choices[0].message
    (call,) = message.tool_calls
    ran["Weather"].model_validate_json(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages += [message, result]
    second = litellm.completion(messages=messages, tool_choice="none", **options)
    assert second.choices[0].message.content
    messages += [second.choices[0].message, {"role": "user", "content": "Thanks."}]
    third = litellm.completion(messages=messages, **options)
    assert third.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_schema(example: Example, address: str, provider: str) -> None:
    ran = example("")
    whole = litellm.completion(
        messages=[{"role": "user", "content": ran["QUESTION"]}],
        response_format=ran["Weather"],
        **asked(provider, address),
    )
    ran["Weather"].model_validate_json(whole.choices[0].message.content)


@pytest.mark.parametrize("provider", OPENAI_LIKE)
def test_a_stream(address: str, provider: str) -> None:
    options = asked(provider, address)
    hello = [{"role": "user", "content": "Say hello."}]
    chunks = list(litellm.completion(messages=hello, stream=True, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert len(chunks) > 2
    assert text == litellm.completion(messages=hello, **options).choices[0].message.content


@pytest.mark.parametrize("parallel", [False, True])
def test_parallel_tool_calls(example: Example, address: str, parallel: bool) -> None:
    """LiteLLM itself refuses the option for the other providers."""
    ran = example("")
    schema = ran["Weather"].model_json_schema()
    whole = litellm.completion(
        messages=[{"role": "user", "content": ran["QUESTION"]}],
        tools=[{"type": "function", "function": {"name": "w", "parameters": schema}}],
        tool_choice={"type": "function", "function": {"name": "w"}},
        parallel_tool_calls=parallel,
        **asked("hosted_vllm", address),
    )
    (call,) = whole.choices[0].message.tool_calls
    ran["Weather"].model_validate_json(call.function.arguments)


def test_a_completion(base_url: str) -> None:
    whole = litellm.text_completion(
        model="text-completion-openai/any",
        prompt="The capital of France is",
        api_base=base_url,
        api_key="none",
        max_tokens=8,
        temperature=0,
    )
    assert "Paris" in whole.choices[0].text
    assert whole.usage.completion_tokens == 8


def test_an_overlong_prompt_is_recognized(address: str) -> None:
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=long, **asked("openai", address))
