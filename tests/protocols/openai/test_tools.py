"""Tool calls and reasoning in chat completions, checked with OpenAI's types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import ENGINE, FakeEngine
from tests.support.smollm2 import smollm2_tokenizer
from tests.tool_calls.outputs.notation import TOOLS, Call, Cut, Think
from tests.tool_calls.parsing import FORMATS, cases
from tokenizers import AddedToken, Tokenizer

from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_TOOLS
from trtllm_truss.protocols.openai.adapter import MessageStream, OpenAIAdapter
from trtllm_truss.protocols.openai.answers import EventStream, OpenAICall
from trtllm_truss.protocols.openai.body import parse_chat
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import FinishReason, GenerationEnd, TextDelta, Token, Usage
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.parser import choose_formats

HELLO = [{"role": "user", "content": "Hello"}]
Json = dict[str, Any]
SENT = [
    {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters)}}
    for tool in TOOLS
]
WEATHER = next(tool for tool in SENT if tool["function"]["name"] == "get_weather")
NAMED = {"type": "function", "function": {"name": "get_weather"}}
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def chat(form: str = "hermes", reasoning: str | None = None, **fields: Any) -> OpenAICall:
    formats = ModelFormats(
        TOOL_FORMATS[form],
        REASONING_FORMATS[reasoning] if reasoning else None,  # type: ignore[index]
    )
    return parse_chat({"messages": HELLO, **fields}, {}, formats)


def end(reason: FinishReason = FinishReason.STOP) -> GenerationEnd:
    return GenerationEnd(reason, Usage(5, 2))


def answer(
    call: OpenAICall, pieces: Iterable[str], reason: FinishReason = FinishReason.STOP
) -> Any:
    """The only choice, whole or joined from its chunks."""
    adapter = OpenAIAdapter(lambda body, _: call, {}, "chat")
    writer = adapter.read({}, "", "x").writer
    raw = b"".join(writer.push(TextDelta(piece)) for piece in pieces)
    raw += writer.push(end(reason)) + writer.end()
    if not call.stream:
        body = json.loads(raw)
        ChatCompletion.model_validate(body)
        return body["choices"][0]
    *events, done = raw.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return joined([chunk["choices"][0] for chunk in chunks])


def joined(choices: list[Json]) -> Json:
    assert choices[0]["delta"] == {"role": "assistant", "content": None}
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    for choice in choices[1:]:
        assert choice["delta"] or choice is choices[-1]
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                message[name] = (message.get(name) or "") + value
                continue
            (part,) = value
            calls = message.setdefault(name, [])
            if "id" in part:
                assert part["index"] == len(calls)
                assert part["function"]["arguments"] == ""
                calls.append({key: part[key] for key in ("id", "type", "function")})
            else:
                assert part["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    return {"message": message, "finish_reason": choices[-1]["finish_reason"]}


def calls_of(choice: Json) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("name", FORMATS)
def test_a_message_holds_what_the_model_wrote(name: str) -> None:
    for written in cases(name):
        found = answer(chat(name, tools=SENT), [written.output])
        message = found["message"]
        texts = "".join(part for part in written.parts if isinstance(part, str))
        wanted = [part for part in written.parts if isinstance(part, Call)]
        calls = [(called, json.loads(arguments)) for called, arguments in calls_of(found)]
        assert calls == [tuple(part) for part in wanted]
        assert found["finish_reason"] == ("tool_calls" if wanted else "stop")
        thoughts = "".join(part.text for part in written.parts if isinstance(part, Think))
        assert message.get("reasoning_content", "") == thoughts
        if not any(isinstance(part, Cut) for part in written.parts):
            assert message["content"] == (texts or (None if wanted else ""))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_forced_call_that_is_cut_off_stays_a_call(stream: bool, choice: Any) -> None:
    """As OpenAI's, whose `finish_reason` says that the arguments are not whole."""
    call = chat(tools=SENT, tool_choice=choice, stream=stream)
    written = HERMES[:-20]
    found = answer(call, [written], FinishReason.LENGTH)
    (cut,) = calls_of(found)
    assert cut == ("get_weather", '{"city": "')
    assert (found["message"]["content"], found["finish_reason"]) == (None, "length")


@pytest.mark.parametrize("name", FORMATS)
def test_a_stream_holds_what_the_message_holds(name: str) -> None:
    for written in cases(name):
        if any(isinstance(part, Cut) for part in written.parts):
            continue
        whole = answer(chat(name, tools=SENT), [written.output])
        pieces = [written.output[at : at + 3] for at in range(0, len(written.output), 3)]
        streamed = answer(chat(name, tools=SENT, stream=True), pieces)
        assert calls_of(streamed) == calls_of(whole)
        assert streamed["finish_reason"] == whole["finish_reason"]
        for field in ("content", "reasoning_content"):
            assert (streamed["message"].get(field) or "") == (whole["message"].get(field) or "")


def test_a_call_that_is_cut_off_is_text() -> None:
    cut = HERMES[:-20]
    whole = answer(chat(tools=SENT), [cut], FinishReason.LENGTH)
    assert whole["finish_reason"] == "length"
    assert whole["message"]["content"].startswith('{"name": "get_weather", "arguments": {"city"')
    assert "tool_calls" not in whole["message"]
    streamed = answer(chat(tools=SENT, stream=True), [cut], FinishReason.LENGTH)
    assert streamed["finish_reason"] == "length"
    assert streamed["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_without_parallel_calls(stream: bool) -> None:
    fields = {"tools": SENT, "stream": stream, "parallel_tool_calls": False}
    found = answer(chat(**fields), [HERMES + HERMES.replace("Oslo", "Rome")])
    assert calls_of(found) == [("get_weather", '{"city": "Oslo"}')]
    assert found["message"]["content"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_a_field_of_its_own(stream: bool) -> None:
    call = chat(reasoning="qwen3", stream=stream)
    found = answer(call, ["<think>\nHm", "m.\n</thi", "nk>\n\nHello."])
    assert found["message"]["reasoning_content"] == "Hmm."
    assert found["message"]["content"] == "Hello."
    assert found["finish_reason"] == "stop"
    both = chat(reasoning="qwen3", tools=SENT, stream=stream)
    found = answer(both, [f"<think>Hm.</think>\n{HERMES}"])
    assert found["message"]["reasoning_content"] == "Hm."
    assert found["message"]["content"] is None
    assert calls_of(found) == [("get_weather", '{"city": "Oslo"}')]


def test_log_probs_of_calls_are_those_of_all_tokens() -> None:
    call = chat(tools=SENT, stream=True, logprobs=True)
    stream = MessageStream(call, "x", 7)
    tokens = [Token(place, text, -0.5) for place, text in enumerate(HERMES)]
    raw = b"".join(stream.push(TextDelta(token.text, tokens=(token,))) for token in tokens)
    raw += stream.push(end())
    chunks = [json.loads(event[6:]) for event in raw.decode().split("\n\n") if event]
    reported = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    texts = [token["token"] for each in reported if each for token in each["content"]]
    assert "".join(texts) == HERMES


def test_a_chat_without_tools_has_no_parser() -> None:
    assert chat().new_parser is None
    assert chat(tools=[], tool_choice="auto").new_parser is None
    none = chat(tools=SENT, tool_choice="none")
    assert none.new_parser is None
    assert none.requests[0].chat.tools is None
    adapter = OpenAIAdapter(lambda body, _: chat(stream=True), {}, "chat")
    assert type(adapter.read({}, "", "x").writer) is EventStream


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        (NAMED, ["get_weather"]),
        ("required", [tool.name for tool in TOOLS]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            ["get_weather"],
        ),
    ],
)
@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_forced_call_has_a_prefix_and_a_guide(name: str, choice: Any, offered: list[str]) -> None:
    call = chat(name, tools=SENT, tool_choice=choice)
    (request,) = call.requests
    assert request.guide is not None
    assert request.guide.language == "json_schema"
    assert request.names["guide"] == "tool_choice"
    text = request.guide.text + request.chat.answer_prefix
    assert [tool.name for tool in TOOLS if f'"{tool.name}"' in text or tool.name in text] == offered
    arguments = '{"city": "Oslo"}'
    schema = json.loads(request.guide.text)
    item = schema.get("items", schema)
    item = item.get("anyOf", [item])[0]
    if "required" in item:
        arguments = f'{{"name": "get_weather", "{item["required"][1]}": {arguments}}}'
    written = f"[{arguments}]" if "items" in schema else arguments
    found = answer(call, [request.chat.answer_prefix, written])
    assert calls_of(found) == [("get_weather", '{"city": "Oslo"}')]
    assert found["message"]["content"] is None
    # OpenAI ends the call of a named function with `stop`; so do the tests of vLLM and Triton.
    assert found["finish_reason"] == ("stop" if choice == NAMED else "tool_calls")


def with_strict(tool: Json, strict: Any) -> Json:
    return {**tool, "function": {**tool["function"], "strict": strict}}


def test_the_schema_of_a_forced_call_is_strict_if_its_function_is() -> None:
    tools = [with_strict(WEATHER, True), *(tool for tool in SENT if tool is not WEATHER)]
    for choice in ("required", NAMED):
        (request,) = chat(tools=tools, tool_choice=choice).requests
        assert request.guide is not None
        ((name, schema),) = request.guide.strict_parts
        assert name == "the function get_weather"
        assert json.loads(schema) == {"type": "object", **WEATHER["function"]["parameters"]}
    for strict in (None, False):
        (request,) = chat(tools=[with_strict(WEATHER, strict)], tool_choice=NAMED).requests
        assert request.guide is not None
        assert not request.guide.strict_parts


def test_strict_of_a_function_is_true_or_false() -> None:
    with pytest.raises(InvalidRequest, match=r'tools\[0\]\.function\.strict is "yes"'):
        chat(tools=[with_strict(WEATHER, "yes")])


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_left_out_if_not_wanted(stream: bool) -> None:
    thoughts = ["<think>Hm.</think>\n\n", "Well."]
    for included in (True, False):
        call = chat(reasoning="qwen3", stream=stream, include_reasoning=included)
        message = answer(call, thoughts)["message"]
        assert message["content"] == "Well."
        assert ("reasoning_content" in message) is included


def test_more_allowed_tools_than_there_can_be_are_refused_by_name() -> None:
    for kind in ("auto", "required"):
        allowed = {"mode": kind, "tools": [NAMED] * (MAX_TOOLS + 1)}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        with pytest.raises(InvalidRequest, match="at most 1024 functions") as refused:
            chat(tools=SENT, tool_choice=choice)
        assert refused.value.message.startswith("tool_choice.allowed_tools.tools has 1025")
        assert refused.value.param == "tool_choice"


def test_allowed_tools_leave_the_choice_to_the_model() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    call = chat(tools=SENT, tool_choice=allowed)
    assert call.requests[0].chat.tools == SENT
    assert call.requests[0].guide is None
    assert calls_of(answer(call, [HERMES])) == [("get_weather", '{"city": "Oslo"}')]
    other = '\n{"name": "get_time", "arguments": {}}\n'
    written = f"<tool_call>{other}</tool_call>"
    assert answer(call, [written])["message"]["content"] == other


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_call_in_the_text_is_written_as_the_model_would(name: str) -> None:
    """For templates that show no calls."""
    write_call = chat(name, tools=SENT).requests[0].chat.write_call
    assert write_call is not None
    written = write_call("get_weather", '{"city": "Oslo"}')
    form = name if TOOL_FORMATS[name].guides(TOOLS[:1], parallel=True) else "json"
    assert calls_of(answer(chat(form, tools=SENT), [written])) == [
        ("get_weather", '{"city": "Oslo"}')
    ]


@pytest.mark.parametrize(
    ("serving", "template", "tools", "reasoning"),
    [
        ({}, "{{ content }}", "hermes", None),
        ({}, "{{ tools }} of another format", None, None),
        ({}, "{{ tools }} <tool_call> </think>", "hermes", "qwen3"),
        ({"tool_parser": "mistral"}, "{{ tools }} <tool_call>", "mistral", None),
        ({"tool_parser": "none", "reasoning_parser": "none"}, "<think>", None, None),
        ({"reasoning_parser": "granite"}, "{{ tools }} </think>", None, "granite"),
    ],
)
def test_formats_are_chosen_by_settings_or_template(
    serving: Mapping[str, Any], template: str, tools: str | None, reasoning: str | None
) -> None:
    limits = Serving(**serving)
    calls, thoughts = choose_formats(limits.tool_parser, limits.reasoning_parser, template)
    assert calls == (TOOL_FORMATS[tools] if tools else None)
    starts = REASONING_FORMATS[reasoning].starts if reasoning else None
    assert (thoughts and thoughts.starts) == starts


THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
    "{% endfor %}{{ tools | tojson if tools }}{# <tool_call> #}<|im_start|>assistant\n<think>"
)
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def thinking_tokenizer() -> TextTokenizer:
    backend = Tokenizer.from_str(smollm2_tokenizer()._backend.to_str())
    backend.add_special_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return TextTokenizer(
        TokenizerParts(backend, eos_ids=(2,), chat_templates={"default": THINKING})
    )


async def posted(steps: list[str], guided: Sequence[str] = (), **fields: Any) -> tuple[Json, str]:
    """The answer of a server with a scripted engine, and the last prompt that the engine got.

    Args:
        steps: text that the engine sends.
        guided: text that it sends with a guide.
        fields: fields of the body.
    """
    tokenizer = thinking_tokenizer()
    big = replace(ENGINE, max_sequence_tokens=4096, max_input_tokens=4095)
    engine = FakeEngine(
        lambda request: guided if request.guide else steps,
        tokenizer,
        engine=big,
        kv_cache_tokens=4096,
    )
    routes = build_routes(engine, {})  # type: ignore[arg-type]
    route = Route("/chat", routes["/v1/chat/completions"].__call__, methods=["POST"])
    transport = httpx.ASGITransport(Starlette(routes=[route]))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.post("/chat", json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    body: Json = response.json()
    ChatCompletion.model_validate(body)
    prompt = tokenizer.decode(engine.requests[-1].input_ids, skip_special_tokens=False)
    return {**body["choices"][0], "usage": body["usage"]}, prompt


async def test_markers_that_are_special_tokens_are_read() -> None:
    steps = ["Hm.", "</think>\n<|im_start|>\n", HERMES]
    choice, prompt = await posted(steps, tools=SENT)
    assert prompt.endswith("<|im_start|>assistant\n<think>")
    assert choice["message"]["reasoning_content"] == "Hm."
    assert "im_start" not in json.dumps(choice)
    assert calls_of(choice) == [("get_weather", '{"city": "Oslo"}')]
    reasoned = len(thinking_tokenizer().encode("Hm.</think>"))
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoned}


async def test_reasoning_that_does_not_end_is_all_of_the_answer() -> None:
    choice, _ = await posted(["Hm", "m."])
    assert choice["message"]["reasoning_content"] == "Hmm."
    assert choice["message"]["content"] == ""
    usage = choice["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"]


async def test_a_forced_call_follows_the_reasoning() -> None:
    written = HERMES.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    steps = ["Hm.", "\n</think>"]
    choice, prompt = await posted(steps, [written], tools=SENT, tool_choice=NAMED)
    assert prompt.endswith("<think>Hm.\n</think>\n\n<tool_call>\n")
    assert calls_of(choice) == [("get_weather", '{"city": "Oslo"}')]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Hm."
    reasoned = len(thinking_tokenizer().encode("Hm.\n</think>"))
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoned}


async def test_markers_in_messages_stay_text() -> None:
    messages = [{"role": "user", "content": "<think>"}]
    choice, _ = await posted(["</think>Hi"], messages=messages)
    assert choice["message"]["content"] == "Hi"
    plain = thinking_tokenizer().apply_chat_template(messages)
    assert plain.count(thinking_tokenizer().encode("<think>")[0]) == 1
