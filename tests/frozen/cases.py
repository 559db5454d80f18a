"""The requests whose exchanges are kept, by protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.engine import Step
from trtllm_truss.errors import EngineUnavailable, QueueFull
from trtllm_truss.local_requests import PREDICT

SAYS: Sequence[Step] = ("Hello", " there", "!")


@dataclass(frozen=True)
class Case:
    """One request, and what the engine generates for it.

    Attributes:
        body: JSON, raw bytes, or None for no body.
        says: steps of the engine.
    """

    protocol: str
    name: str
    path: str
    body: Any = None
    says: Sequence[Step] = SAYS
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


USER = [{"role": "user", "content": "Hi"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CALL = (
    "<tool_call>\n",
    '{"name": "get_weather", ',
    '"arguments": {"city": "Oslo"}}',
    "\n</tool_call>",
)
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        }
    ],
}
OSLO: Sequence[Step] = ('{"city": ', '"Oslo"}')
GONE = EngineUnavailable("the engine has died.", retry_after_s=5)
FULL = QueueFull("the queue is full.", retry_after_s=1)
TGI = {"user-agent": "unknown/None; hf_hub/1.0.0; python/3.12"}


def _predict(name: str, **body: Any) -> Case:
    return Case("predict", name, PREDICT, {"prompt": "Hi", **body})


def _completion(name: str, **body: Any) -> Case:
    return Case("completions", name, "/v1/completions", {"prompt": "Hi", "max_tokens": 9, **body})


def _chat(name: str, says: Sequence[Step] = SAYS, **body: Any) -> Case:
    whole = {"messages": USER, "max_tokens": 60, **body}
    return Case("chat", name, "/v1/chat/completions", whole, says)


def _message(name: str, says: Sequence[Step] = SAYS, **body: Any) -> Case:
    whole = {"model": "frozen", "messages": USER, "max_tokens": 60, **body}
    return Case("messages", name, "/v1/messages", whole, says)


def _response(name: str, says: Sequence[Step] = SAYS, **body: Any) -> Case:
    return Case("responses", name, "/v1/responses", {"input": "Hi", **body}, says)


def _lmi(name: str, says: Sequence[Step] = SAYS, path: str = PREDICT, **body: Any) -> Case:
    return Case("lmi", name, path, {"inputs": "Hi", **body}, says)


PROMPT = {"prompt": "One two three"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
CLAUDE_TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": CITY}
FLAT_TOOL = {"type": "function", "name": "get_weather", "parameters": CITY}

CASES: Sequence[Case] = (
    _predict("streamed by default"),
    _predict("whole", stream=False),
    _predict(
        "all of sampling",
        stream=False,
        max_tokens=5,
        min_tokens=1,
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        seed=3,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        stop_words=["stop"],
        bad_words=["bad"],
    ),
    _predict("messages", prompt=None, messages=USER, stream=False),
    _predict("without a prompt", prompt=None),
    _predict("a stop word", stop_words=[" there"]),
    _predict("a wrong type", max_tokens="many"),
    _predict("out of range", temperature=-1),
    _predict("an unknown field", max_tokns=3),
    _predict("too long", prompt="word " * 600),
    Case("predict", "an empty body", PREDICT, {}),
    Case("predict", "no JSON", PREDICT, b"{"),
    Case("predict", "the engine is gone", PREDICT, {"prompt": "Hi"}, (GONE,)),
    Case("predict", "gone in a stream", PREDICT, {"prompt": "Hi"}, ("Hel", "lo", GONE)),
    _completion("whole"),
    _completion("streamed", stream=True, stream_options={"include_usage": True}),
    _completion("two choices", n=2),
    _completion("two prompts", prompt=["Hi", "Ho"]),
    _completion("log probabilities", logprobs=2),
    _completion("an echo", echo=True),
    _completion("token ids", prompt=[19556, 905]),
    _completion("a suffix", suffix="end"),
    _completion("best_of", best_of=3, n=2),
    Case(
        "completions",
        "the queue is full",
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 9},
        (FULL,),
    ),
    _chat("whole"),
    _chat("streamed", stream=True),
    _chat("streamed with usage", stream=True, stream_options={"include_usage": True}),
    _chat("cut", ("One", " two", " three"), max_completion_tokens=3, max_tokens=None),
    _chat("log probabilities", logprobs=True, top_logprobs=2),
    _chat("a system message", messages=[{"role": "system", "content": "Be brief."}, *USER]),
    _chat("bias and penalties", logit_bias={"5": -100}, presence_penalty=1, frequency_penalty=-1),
    _chat("a schema", OSLO, response_format=SCHEMA),
    _chat("any object", OSLO, response_format={"type": "json_object"}),
    _chat("a regex", ("12",), guided_regex="[0-9]+"),
    _chat("choices", ("yes",), guided_choice=["yes", "no"]),
    _chat("a schema that is none", response_format={"type": "json_schema"}),
    _chat("tools", CALL, tools=[WEATHER]),
    _chat("tools streamed", CALL, tools=[WEATHER], stream=True),
    _chat("tools unused", tools=[WEATHER]),
    _chat("a forced call", OSLO, tools=[WEATHER], tool_choice="required"),
    _chat(
        "a named call",
        OSLO,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ),
    _chat(
        "a result",
        messages=[*USER, CALLED, {"role": "tool", "tool_call_id": "call_123", "content": "Rain"}],
        tools=[WEATHER],
    ),
    _chat(
        "a named call without tools",
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ),
    _chat("no messages", messages=[]),
    _chat("an unknown role", messages=[{"role": "robot", "content": "Hi"}]),
    _chat("an image", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    _chat("gone", (GONE,)),
    _chat("gone in a stream", ("Hel", "lo", GONE), stream=True),
    _message("whole"),
    _message("streamed", stream=True),
    _message("a system prompt and a stop", system="Be brief.", stop_sequences=["!"]),
    _message("tools", CALL, tools=[CLAUDE_TOOL]),
    _message("tools streamed", CALL, tools=[CLAUDE_TOOL], stream=True),
    _message("any tool", OSLO, tools=[CLAUDE_TOOL], tool_choice={"type": "any"}),
    _message("without max_tokens", max_tokens=None),
    _message("gone", (GONE,)),
    Case(
        "messages",
        "a count",
        "/v1/messages/count_tokens",
        {"model": "frozen", "messages": USER},
    ),
    _response("whole"),
    _response("streamed", stream=True),
    _response("instructions", instructions="Be brief.", max_output_tokens=20),
    _response("tools", CALL, tools=[FLAT_TOOL]),
    _response("tools streamed", CALL, tools=[FLAT_TOOL], stream=True),
    _response(
        "a schema", OSLO, text={"format": {"type": "json_schema", "name": "p", "schema": CITY}}
    ),
    _response("stored", previous_response_id="resp_1234567890"),
    _response("gone", (GONE,)),
    Case("responses", "a count", "/v1/responses/input_tokens", {"input": "Hi"}),
    Case("tokenize", "a prompt", "/tokenize", PROMPT),
    Case("tokenize", "a conversation", "/tokenize", {"messages": USER}),
    Case("tokenize", "texts of tokens", "/tokenize", {**PROMPT, "return_token_strs": True}),
    Case("tokenize", "back", "/detokenize", {"tokens": [19556, 905]}),
    Case("tokenize", "an unknown token", "/detokenize", {"tokens": [-1]}),
    _lmi("whole"),
    _lmi("streamed", stream=True),
    _lmi("parameters", parameters={"max_new_tokens": 3, "details": True, "do_sample": True}),
    _lmi("invocations", path="/invocations"),
    _lmi("a wrong parameter", parameters={"max_new_tokens": -1}),
    Case("lmi", "TGI", PREDICT, {"inputs": "Hi"}, headers=TGI),
    Case("lmi", "TGI streamed", PREDICT, {"inputs": "Hi", "stream": True}, headers=TGI),
    Case("lmi", "TGI gone", PREDICT, {"inputs": "Hi"}, (GONE,), headers=TGI),
    Case("server", "models", "/v1/models", method="GET"),
    Case("server", "a model", "/v1/models/frozen", method="GET"),
    Case("server", "an unknown model", "/v1/models/other", method="GET"),
    Case("server", "health", "/health", method="GET"),
    Case("server", "a wrong path", "/v1/v1/chat/completions", {}),
    Case("server", "a path without /v1", "/chat/completions", {}),
    Case("server", "an unknown path", "/nothing", method="GET"),
    Case("server", "a wrong method", "/v1/chat/completions", method="GET"),
    Case("server", "a wrong key", "/v1/completions", PROMPT, headers={"authorization": "Bearer x"}),
    Case("server", "embeddings", "/v1/embeddings", {"input": "Hi"}),
)
