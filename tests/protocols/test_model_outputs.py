"""Outputs of models through the public routes: a scripted engine answers, whole and as a stream.

The cases are minimal forms of public reports about other servers, with the number of the report.
"""

# ruff: noqa: E501 - outputs as models write them

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import ENGINE, FakeEngine
from tests.support.smollm2 import smollm2_tokenizer
from tests.tool_calls.outputs.notation import TOOLS
from tests.tool_calls.test_registry import CALLS, template
from tokenizers import AddedToken, Tokenizer

from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.protocols import tool_use
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.tool_calls.catalog import TOOL_FORMATS

Json = dict[str, Any]
USER = {"role": "user", "content": "Hello"}
FUNCTIONS = [{"name": tool.name, "parameters": dict(tool.parameters)} for tool in TOOLS]
PARIS = ("get_weather", {"city": "Paris"})
TIME = ("get_time", {})
GPT_OSS = {"tool_parser": "harmony", "reasoning_parser": "harmony"}
THOUGHT = "<|channel|>analysis<|message|>think<|end|><|start|>assistant"


class Case(NamedTuple):
    """An output, and the expected contents of responses.

    Attributes:
        serving: names of formats, or the chat template to recognize them by.
    """

    serving: dict[str, str] | str
    output: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Json], ...] = ()


CASES: dict[str, Case] = {
    # Garbled headers of gpt-oss: ggml-org/llama.cpp#27720, openai/harmony#38 and #114.
    "a channel with a question mark": Case(
        GPT_OSS,
        "<|channel|>commentary?<|end|><|start|>assistant<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
        "Hi",
        "?\nthink",
    ),
    "a sentence as a header": Case(
        GPT_OSS,
        "<|channel|>We should look at the file<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
        "Hi",
        "We should look at the file",
    ),
    "assistant as the recipient": Case(
        GPT_OSS,
        f"{THOUGHT} to=assistant<|channel|>commentary to=assistant<|message|>Hi<|end|>",
        "Hi",
        "think",
    ),
    "user as the recipient": Case(
        GPT_OSS, f"{THOUGHT} to=user<|channel|>final<|message|>Hi<|return|>", "Hi", "think"
    ),
    "no header": Case(GPT_OSS, "<|message|>Hello<|return|>", "Hello"),
    "no message": Case(
        GPT_OSS, f"{THOUGHT}<|channel|>final Hello there<|return|>", "Hello there", "think"
    ),
    "no message, and a call": Case(
        GPT_OSS,
        f'{THOUGHT}<|channel|>commentary to=functions.get_weather <|constrain|>json{{"city": "Paris"}}<|call|>',
        "",
        "think",
        (PARIS,),
    ),
    "a function as the channel": Case(
        GPT_OSS,
        f'{THOUGHT}<|channel|>get_weather<|message|>{{"city": "Paris"}}<|call|>',
        "",
        "think",
        (PARIS,),
    ),
    "a function that is not offered": Case(
        GPT_OSS,
        f"{THOUGHT}<|channel|>commentary to=functions.rm_rf<|message|>{{}}<|call|>",
        "functions.rm_rf {}",
        "think",
    ),
    # Calls without arguments: vllm-project/vllm#32518.
    "nothing behind the header": Case(
        GPT_OSS,
        f"{THOUGHT}<|channel|>commentary to=functions.get_time <|constrain|>json<|message|><|call|>",
        "",
        "think",
        (TIME,),
    ),
    "null behind the header": Case(
        GPT_OSS,
        f"{THOUGHT}<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>null<|call|>",
        "",
        "think",
        (TIME,),
    ),
    "nothing behind [ARGS]": Case(
        {"tool_parser": "mistral"}, "[TOOL_CALLS]get_time[ARGS]", calls=(TIME,)
    ),
    "nothing behind DeepSeek's separator": Case(
        {"tool_parser": "deepseek_v31"},
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls=(TIME,),
    ),
    # Leftovers: ggml-org/llama.cpp#15682, ollama/ollama#10338, yigit353/langchain-qwq#30.
    "Granite's response": Case(
        {"reasoning_parser": "qwen3"},
        "<think>why</think><response>Hello there</response>",
        "Hello there",
        "why",
    ),
    "a brace too few": Case(
        {"tool_parser": "hermes"},
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}\n</tool_call>',
        calls=(PARIS,),
    ),
    "two braces too few": Case(
        {"tool_parser": "hermes"},
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"\n</tool_call>',
        calls=(PARIS,),
    ),
    "a brace too few, and another call": Case(
        {"tool_parser": "hermes"},
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}\n</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        calls=(PARIS, TIME),
    ),
    "a brace too many": Case(
        {"tool_parser": "hermes"},
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}}\n</tool_call>',
        calls=(PARIS,),
    ),
    "a quote and a brace too many": Case(
        {"tool_parser": "hermes"},
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}"}\n</tool_call>',
        calls=(PARIS,),
    ),
    "a brace too many, Llama": Case(
        {"tool_parser": "llama3_json"},
        '{"name": "get_weather", "parameters": {"city": "Paris"}}}',
        calls=(PARIS,),
    ),
    "reasoning that only ends": Case({"reasoning_parser": "qwen3"}, "</think>\n\nHi", "Hi"),
    "a call in reasoning that does not end": Case(
        {"tool_parser": "hermes", "reasoning_parser": "qwen3"},
        '<think>Look.\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        reasoning="Look.",
        calls=(TIME,),
    ),
    # Models that TensorRT-LLM's server reads: NVIDIA/TensorRT-LLM#11986, #6667, #12196 and #9784.
    "GLM 4.5": Case(
        CALLS["glm-4.6"][0].replace("<|assistant|>", "<|assistant|>{{ '</think>' }}"),
        "<think>x</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        reasoning="x",
        calls=(PARIS,),
    ),
    "Kimi K2": Case(
        CALLS["kimi-k2"][0],
        'Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        "Well.",
        calls=(PARIS,),
    ),
    "Gemma 4": Case(
        CALLS["gemma-4"][0],
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        calls=(PARIS,),
    ),
    "Nemotron": Case(
        CALLS["nemotron-nano-v2"][0],
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        calls=(PARIS,),
    ),
    "MiniMax M2": Case(
        CALLS["minimax-m2"][0],
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        calls=(PARIS,),
    ),
    "DeepSeek V3.2": Case(
        CALLS["deepseek-v3.2"][0],
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        calls=(PARIS,),
    ),
    "Kimi K3": Case(
        CALLS["kimi-k3"][0].replace("<|assistant|>", "<|assistant|><|open|>think<|sep|>"),
        'x<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>',
        "Well.",
        "x",
        (PARIS,),
    ),
}


@cache
def tokenizer(source: str, output: str) -> TextTokenizer:
    """A tokenizer whose special tokens are the control words in an output."""
    backend = Tokenizer.from_str(smollm2_tokenizer()._backend.to_str())
    formats = TOOL_FORMATS.values()
    words = {word for form in formats for word in form.dropped if word in output}
    backend.add_special_tokens([AddedToken(word, normalized=False) for word in sorted(words)])
    parts = TokenizerParts(backend, eos_ids=(2,), chat_templates={"default": source})
    return TextTokenizer(parts)


async def posted(path: str, case: Case, body: Json) -> httpx.Response:
    """The response of a server whose engine writes the output of a case."""
    is_template = isinstance(case.serving, str)
    used = tokenizer(str(case.serving) if is_template else template(), case.output)
    engine = FakeEngine(
        lambda request: [case.output[at : at + 5] for at in range(0, len(case.output), 5)],
        used,
        limits=Serving(chunk_interval_ms=0, **({} if is_template else case.serving)),  # type: ignore[arg-type]
        engine=replace(ENGINE, max_sequence_tokens=8192, max_input_tokens=8191),
        kv_cache_tokens=8192,
    )
    routes = build_routes(engine, {})  # type: ignore[arg-type]
    app = Starlette(routes=[Route(path, routes[path].__call__, methods=["POST"])])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def frames(response: httpx.Response) -> list[Json]:
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("name", CASES)
async def test_chat_completions(name: str) -> None:
    case = CASES[name]
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]
    body = {"model": "m", "messages": [USER], "tools": tools, "max_tokens": 2000}
    choice = (await posted("/v1/chat/completions", case, body)).json()["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    assert message["content"] == (case.text or None if case.calls else case.text)
    assert message.get("reasoning_content", "") == case.reasoning
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [*case.calls]
    assert choice["finish_reason"] == ("tool_calls" if case.calls else "stop")
    text = reasoning = ""
    streamed: list[list[str]] = []
    for chunk in frames(await posted("/v1/chat/completions", case, {**body, "stream": True})):
        delta = chunk["choices"][0]["delta"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "name" in call["function"]:
                streamed.append([call["function"]["name"], ""])
            streamed[call["index"]][1] += call["function"]["arguments"]
    assert (text, reasoning) == (case.text, case.reasoning)
    assert [(name, json.loads(arguments)) for name, arguments in streamed] == [*case.calls]


@pytest.mark.parametrize("name", CASES)
async def test_messages(name: str) -> None:
    case = CASES[name]
    tools = [
        {"name": each["name"], "input_schema": {"type": "object", **each["parameters"]}}
        for each in FUNCTIONS
    ]
    body = {"model": "m", "messages": [USER], "tools": tools, "max_tokens": 2000}
    message = (await posted("/v1/messages", case, body)).json()
    blocks = message["content"]
    assert message["stop_reason"] == ("tool_use" if case.calls else "end_turn")
    assert "".join(each["text"] for each in blocks if each["type"] == "text") == case.text
    calls = [(each["name"], each["input"]) for each in blocks if each["type"] == "tool_use"]
    assert calls == [*case.calls]


@pytest.mark.parametrize("name", CASES)
async def test_responses(name: str) -> None:
    case = CASES[name]
    tools = [{"type": "function", **each} for each in FUNCTIONS]
    body = {"model": "m", "input": "Hello", "tools": tools, "max_output_tokens": 2000}
    items = (await posted("/v1/responses", case, body)).json()["output"]
    parts = [part for each in items if each["type"] == "message" for part in each["content"]]
    assert "".join(part["text"] for part in parts) == case.text
    calls = [each for each in items if each["type"] == "function_call"]
    assert [(each["name"], json.loads(each["arguments"])) for each in calls] == [*case.calls]


async def test_calls_of_an_unknown_format_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tool_use._warn_of_text.cache_clear()
    case = Case(template(), "CALL get_time", "CALL get_time")
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]
    body = {"model": "m", "messages": [USER], "tools": tools, "max_tokens": 20}
    with caplog.at_level("INFO"):
        for _ in range(2):
            response = await posted("/v1/chat/completions", case, body)
            assert response.json()["choices"][0]["message"]["content"] == case.text
    starts = [each for each in caplog.messages if "in no known format" in each]
    requests = [each for each in caplog.messages if "with tool_choice auto" in each]
    assert len(starts) == 2
    assert len(requests) == 1
    caplog.clear()
    with caplog.at_level("INFO"):
        await posted("/v1/chat/completions", case._replace(serving={"tool_parser": "none"}), body)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
