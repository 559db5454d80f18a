"""huggingface_hub's client of inference servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from huggingface_hub import InferenceClient

Example = Callable[..., dict[str, Any]]


def test_the_page(example: Example) -> None:
    ran = example("huggingface_hub")
    (call,) = ran["message"].tool_calls
    ran["Weather"].model_validate_json(call.function.arguments)
    assert ran["messages"][-1]["tool_call_id"] == call.id
    assert ran["first"].choices[0].finish_reason == "tool_calls"
    assert ran["first"].usage.completion_tokens > 5
    assert ran["second"].choices[0].message.content
    ran["Weather"].model_validate_json(ran["typed"].choices[0].message.content)


def test_a_stream(example: Example) -> None:
    ran = example("huggingface_hub")
    chunks = list(
        ran["client"].chat_completion(
            [{"role": "user", "content": "Say hello."}], stream=True, max_tokens=30, temperature=0
        )
    )
    assert "ello" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_text_generation(address: str) -> None:
    client = InferenceClient(model=f"http://{address}/invocations")
    text = client.text_generation("The capital of France is", max_new_tokens=8)
    assert "Paris" in text
