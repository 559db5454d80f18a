"""Bodies of /v1/chat/completions: honoured fields, refused fields, and the refusals' words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.conversation.chat import ECHOED
from trtllm_truss.protocols.openai.answers import OpenAICall
from trtllm_truss.protocols.openai.body import (
    CHAT_REFUSED,
    CHAT_UNUSED,
    ChatFields,
    parse_chat,
    parse_completion,
)
from trtllm_truss.protocols.openai.fields import REFUSED_EXTENSIONS, UNUSED_EXTENSIONS
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import REST_OF_CONTEXT, ChatFormat, Guide

ALL_REFUSED = {**REFUSED_EXTENSIONS, **CHAT_REFUSED}
ALL_UNUSED = {**UNUSED_EXTENSIONS, **CHAT_UNUSED}
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def call(**fields: Any) -> OpenAICall:
    return parse_chat({"model": "m", "messages": HELLO, **fields}, {})


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        call(**fields)
    assert caught.value.status == 400
    return caught.value


def test_every_official_field_has_its_place() -> None:
    official = {
        *CompletionCreateParamsStreaming.__annotations__,
        *CompletionCreateParamsNonStreaming.__annotations__,
    }
    assert official <= {*ChatFields.model_fields, *CHAT_REFUSED, *CHAT_UNUSED}
    assert not set(ALL_REFUSED) & {*ChatFields.model_fields, *ALL_UNUSED}


def test_defaults_are_openais() -> None:
    parsed = call()
    (request,) = parsed.requests
    assert (parsed.model, parsed.stream, parsed.include_usage, parsed.n) == ("m", False, False, 1)
    assert request.messages == HELLO
    assert (request.prompt, request.prompt_ids) == (None, None)
    assert (request.max_tokens, request.max_tokens_given) == (REST_OF_CONTEXT, False)
    assert request.sampling == Sampling(temperature=1.0, top_p=1.0)
    assert request.chat == ChatFormat()
    assert request.log_probs is None
    assert request.guide is None


def test_settings_give_defaults_that_a_body_overrides() -> None:
    defaults = {"max_tokens": 7, "temperature": 0.5, "stop_words": ["x"], "stream": True}
    parsed = parse_chat({"messages": HELLO, "temperature": 0.25}, defaults)
    (request,) = parsed.requests
    assert not parsed.stream
    assert (request.max_tokens, request.max_tokens_given) == (7, False)
    assert request.sampling.temperature == 0.25
    assert request.stop_words == ("x",)
    newer = parse_chat({"messages": HELLO, "max_completion_tokens": 9}, defaults).requests[0]
    assert (newer.max_tokens, newer.max_tokens_given) == (9, True)


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_completion_tokens": 5}, "max_tokens", 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, "max_tokens", 5),
        ({"n": 3}, "n", 3),
        ({"stop": "a"}, "stop_words", ("a",)),
        ({"stop": list("abcdefgh")}, "stop_words", tuple("abcdefgh")),
        ({"stop": None}, "stop_words", ()),
        ({"stop": ""}, "stop_words", ()),
        ({"stop_token_ids": [5, 7]}, "stop_token_ids", (5, 7)),
        ({"logit_bias": {}}, "logit_bias", {}),
        ({"logit_bias": {"15": -100, "7": 0.5}}, "logit_bias", {15: -100.0, 7: 0.5}),
        ({"logprobs": True}, "log_probs", 0),
        ({"logprobs": True, "top_logprobs": 4}, "log_probs", 4),
        ({"logprobs": True, "top_logprobs": 1}, "log_probs", 1),
        ({"logprobs": False}, "log_probs", None),
        ({"beam_width": 4, "n": 2}, "beam_width", 4),
        ({"bad_words": "x"}, "bad_words", ("x",)),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"lora_task_id": 3}, "lora_task_id", 3),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"truncate_prompt_tokens": 8}, "truncate_prompt", 8),
    ],
)
def test_fields_reach_the_request(sent: dict[str, Any], name: str, value: object) -> None:
    assert getattr(call(**sent).requests[0], name) == value


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"temperature": 0}, "temperature", 0),
        ({"top_p": 0}, "top_p", 0),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"top_k": 5}, "top_k", 5),
        ({"top_k": -1}, "top_k", 0),
        ({"seed": 2**63}, "seed", 2**63),
        ({"seed": -1}, "seed", 2**64 - 1),
        ({"presence_penalty": -2}, "presence_penalty", -2),
        ({"frequency_penalty": 2}, "frequency_penalty", 2),
        ({"repetition_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"length_penalty": 0.5}, "length_penalty", 0.5),
        ({"min_tokens": 3}, "min_tokens", 3),
    ],
)
def test_fields_reach_the_sampling(sent: dict[str, Any], name: str, value: object) -> None:
    assert getattr(call(**sent).requests[0].sampling, name) == value


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
def test_fields_that_routers_add_change_nothing(parse: Callable[..., Any]) -> None:
    """As vllm-router 0.1.17 adds them to a chat and a completion; smg 1.13.0 adds `logprobs`."""
    sent: dict[str, Any] = {"prompt": [1, 2]} if parse is parse_completion else {"messages": HELLO}
    added: dict[str, Any] = {
        **dict.fromkeys(("no_stop_trim", "return_hidden_states", "ignore_eos"), False),
        **dict.fromkeys(("skip_special_tokens",), True),
    }
    if parse is parse_chat:
        added |= {"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True}
        added |= {"continue_final_message": False, "logprobs": False}
    assert parse({**sent, **added}, {}).requests == parse(sent, {}).requests
    with pytest.raises(InvalidRequest, match="return_hidden_states is true"):
        parse({**sent, "return_hidden_states": True}, {})


@pytest.mark.parametrize(
    ("response_format", "guide"),
    [
        ({"type": "text"}, None),
        (
            {"type": "json_object"},
            Guide("json_schema", '{"type": "object", "additionalProperties": true}'),
        ),
        ({"type": "json_object", "value": {"a": 1}}, Guide("json_schema", '{"a": 1}')),
        ({"type": "json", "value": {"a": 1}}, Guide("json_schema", '{"a": 1}')),
        ({"type": "regex", "value": "a+"}, Guide("regex", "a+")),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": {"a": 1}}},
            Guide("json_schema", '{"a": 1}'),
        ),
        ({"type": "json_object", "schema": {"a": 1}}, Guide("json_schema", '{"a": 1}')),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            Guide("json_schema", '{"type": "object"}'),
        ),
        ({"type": "regex", "regex": "a+"}, Guide("regex", "a+")),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, Guide("ebnf_grammar", 'root ::= "a"')),
    ],
)
def test_response_format(response_format: dict[str, Any], guide: Guide | None) -> None:
    assert call(response_format=response_format).requests[0].guide == guide


def test_content_is_what_templates_read() -> None:
    call_ = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"q": "π"}'},
    }
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call_, "index": 0}],
            "refusal": None,
            "annotations": [],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3.14"},
        {"role": "assistant", "content": "", "name": "bot"},
    ]
    assert call(messages=messages).requests[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "search", "arguments": {"q": "π"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3.14"},
        {"role": "assistant", "content": "", "name": "bot"},
    ]


BEGUN = {"role": "assistant", "content": "Once upon", "prefix": True}

ECHOES: list[dict[str, Any]] = [
    *({key: {"any": 1}} for key in (*sorted(ECHOED), "__copilotMessageSource")),
    *({"refusal": ""}, {"refusal": "No."}, {"tool_calls": []}, {"name": "a"}),
    *({key: [{"any": 1}, 2]} for key in ("reasoning_details", "thinking_blocks")),
    *({key: "Hm."} for key in ("reasoning_content", "reasoning", "thinking", "thought")),
]


@pytest.mark.parametrize("echoed", ECHOES, ids=lambda echoed: next(iter(echoed)))
def test_what_clients_echo_passes(echoed: dict[str, Any]) -> None:
    messages = call(messages=[*HELLO, {"role": "assistant", "content": "b", **echoed}, *HELLO])
    _, answer, _ = messages.requests[0].messages or ()
    kept = {"name": "a"} if "name" in echoed else {}
    kept |= {"reasoning_content": "Hm."} if "Hm." in echoed.values() else {}
    assert answer == {"role": "assistant", "content": "b", **kept}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("{", "{"),
        ("", {}),
        (" ", {}),
        ("null", {}),
        (None, {}),
        ('["a"]', '["a"]'),
        (["a", "ü"], '["a", "ü"]'),
        (5, "5"),
        ({"q": 1}, {"q": 1}),
        ('{"q": 1}', {"q": 1}),
    ],
)
def test_arguments_of_earlier_calls(sent: Any, read: Any) -> None:
    function = {"name": "f", "arguments": sent, "parsed_arguments": None}
    calls = [{"id": "c", "type": "function", "function": function, "index": 0}]
    for message in ({"tool_calls": calls}, {"function_call": function}):
        messages = [*HELLO, {"role": "assistant", "content": None, **message}]
        answer = (call(messages=messages).requests[0].messages or ())[1]
        assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": read}
        assert "content" not in answer


def test_an_answer_without_content_is_empty_and_a_refusal_is_its_text() -> None:
    messages = [*HELLO, {"role": "assistant"}, {"role": "assistant", "refusal": "No."}]
    _, empty, refused = call(messages=messages).requests[0].messages or ()
    assert empty == {"role": "assistant"}
    assert refused == {"role": "assistant", "content": "No."}


def test_reasoning_in_parts_is_reasoning() -> None:
    said = [{"type": "text", "text": "So."}]
    for part in (
        {"type": "thinking", "thinking": "Hm."},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "reasoning", "text": "Hm."},
        {"type": "reasoning.text", "text": "Hm.", "format": "unknown", "index": 0},
        {"type": "reasoning.summary", "summary": "Hm."},
    ):
        for sent in (
            {"content": [part, *said]},
            {"content": "So.", "reasoning_details": [part]},
            {"content": "So.", "thinking_blocks": [part, {"type": "redacted_thinking"}]},
            {"content": said, "reasoning_details": [part], "reasoning": "Hm."},
        ):
            messages = [*HELLO, {"role": "assistant", **sent}, *HELLO]
            _, answer, _ = call(messages=messages).requests[0].messages or ()
            assert answer == {"role": "assistant", "reasoning_content": "Hm.", "content": "So."}


def test_results_of_every_kind_are_texts() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    sent = [
        {"role": "tool", "tool_call_id": "a", "content": None},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "b"}, image]},
        {"role": "function", "name": "f", "content": "c"},
    ]
    assert (call(messages=[*HELLO, *sent]).requests[0].messages or ())[1:] == [
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": "b\n[image omitted]"},
        {"role": "tool", "name": "f", "content": "c"},
    ]


def test_any_model_name_is_accepted() -> None:
    assert call(model="").model == ""


def test_what_the_template_is_told() -> None:
    chat = call(
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=True,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        add_generation_prompt=False,
    ).requests[0]
    assert chat.chat == ChatFormat(
        tools=[TOOL],
        add_generation_prompt=False,
        variables={"enable_thinking": False, "reasoning_effort": "low"},
    )
    assert call(tools=[TOOL], tool_choice="none").requests[0].chat.tools is None


def test_the_last_message_goes_on() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    chat = call(messages=messages, continue_final_message=True).requests[0].chat
    assert chat.continue_final_message
    assert not chat.add_generation_prompt


@pytest.mark.parametrize("key", ["prefix", "partial"])
def test_a_last_message_that_is_a_prefix_goes_on(key: str) -> None:
    begun = {"role": "assistant", "content": "Once upon"}
    messages = [{**HELLO[0], key: False}, {**begun, key: None}, {**begun, key: True}]
    request = call(messages=messages).requests[0]
    assert request.chat.continue_final_message
    assert not request.chat.add_generation_prompt
    assert request.messages == [*HELLO, begun, begun]


@pytest.mark.parametrize(
    "sent",
    [
        {name: value for name, field in ALL_REFUSED.items() for value in field.neutral[:1]},
        dict.fromkeys(ALL_UNUSED, "x"),
        dict.fromkeys((*ALL_REFUSED, *ALL_UNUSED)),
        {name: None for name in ChatFields.model_fields if name not in ("messages", "model")},
    ],
    ids=["neutral", "unused", "null", "null fields"],
)
def test_what_asks_for_nothing_passes(sent: dict[str, Any]) -> None:
    assert call(**sent) == call()


@pytest.mark.parametrize("name", sorted(ALL_REFUSED))
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: {"something": 1}})
    assert error.param == name
    assert error.message.startswith(f"{name} is ")
    assert ALL_REFUSED[name].reason in error.message


@pytest.mark.parametrize(
    ("sent", "param", "parts"),
    [
        ({"messages": None}, "messages", ["messages is missing"]),
        ({"messages": []}, "messages", ["messages is []"]),
        ({"messages": "hi"}, "messages", ["must be a list"]),
        ({"messages": ["hi"]}, "messages", ["messages[0]", "must be an object"]),
        ({"messages": [{"content": "x"}]}, "messages", ["messages[0].role is missing"]),
        ({"messages": [{"role": "user"}]}, "messages", ["messages[0].content is missing"]),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", ["content is 5"]),
        (
            {"messages": [{**HELLO[0], "contents": 1}]},
            "messages",
            ["messages[0].contents", "the fields are content"],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            ["messages[0].content[0]", "image_url", "type text"],
        ),
        ({"max_tokens": 0}, "max_tokens", ["at least 1"]),
        ({"n": 0}, "n", ["n is 0", "at least 1"]),
        ({"n": 129}, "n", ["at most 128"]),
        ({"n": 3, "beam_width": 2}, "n", ["n is 3", "at most beam_width, 2"]),
        ({"temperature": 2.5}, "temperature", ["2.5", "at most 2"]),
        ({"temperature": "hot"}, "temperature", ["must be a number"]),
        ({"top_p": 1.5}, "top_p", ["at most 1"]),
        ({"seed": 2**64}, "seed", ["at most"]),
        ({"stop": [""]}, "stop", ["must not be empty"]),
        ({"stop_token_ids": [-1]}, "stop_token_ids", ["is -1", "at least 0"]),
        ({"top_k": -2}, "top_k", ["-2", "at least 0"]),
        ({"min_p": 1.5}, "min_p", ["min_p is 1.5", "at most 1"]),
        ({"length_penalty": -0.5}, "length_penalty", ["-0.5", "at least 0"]),
        ({"stop": [1]}, "stop", ["stop[0] is 1"]),
        ({"top_logprobs": 2}, "top_logprobs", ["logprobs is false"]),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["at most 20"]),
        ({"logit_bias": {"the": 1}}, "logit_bias", ['key "the"', "token ids"]),
        ({"logit_bias": {"5": 101}}, "logit_bias", ["at most 100"]),
        ({"stream_options": {"include_usage": True}}, "stream_options", ["stream is false"]),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options",
            ["not padded"],
        ),
        ({"response_format": {"type": "xml"}}, "response_format", ["xml", "json_schema"]),
        ({"response_format": {"type": "json_schema"}}, "response_format", ["json_schema is null"]),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format",
            ["json_schema.schema is null"],
        ),
        (
            {"response_format": {"type": "json_object", "value": "a"}},
            "response_format",
            ["response_format.value is", "a JSON schema"],
        ),
        ({"response_format": {"type": "regex"}}, "response_format", ["regex is null"]),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", ["tools[0]"]),
        ({"tool_choice": "required"}, "tool_choice", ["tool_choice is", "send tools"]),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", ["maybe", "a named function"]),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            ["name a function in tools", '"x"'],
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice",
            ["allowed_tools with a mode"],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools",
            ["tools[0].function.name", "rename"],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools",
            ["tools[0].function.parameters", "JSON schema"],
        ),
        ({"continue_final_message": True}, "continue_final_message", ['by "user"']),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            ["both true"],
        ),
        (
            {"messages": [BEGUN], "add_generation_prompt": True},
            "continue_final_message",
            ["both true"],
        ),
        ({"messages": [{**HELLO[0], "prefix": True}]}, "messages", ["prefix", "the assistant's"]),
        ({"messages": [BEGUN, *HELLO]}, "messages", ["prefix", "only the last message"]),
        ({"messages": [{**BEGUN, "partial": "yes"}]}, "messages", ['messages[0].prefix is "yes"']),
        (
            {"chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs",
            ["contains tools", "field of its own"],
        ),
        (
            {"chat_template_kwargs": {"bos_token": "x"}},
            "chat_template_kwargs",
            ["contains bos_token", "the tokenizer sets it"],
        ),
        (
            {"chat_template_kwargs": {"raise_exception": 1}},
            "chat_template_kwargs",
            ["contains raise_exception", "function of chat templates"],
        ),
        (
            {"chat_template_kwargs": {"custom_tools": [{}] * 30_000}},
            "chat_template_kwargs",
            ["more than 65536 characters as JSON", "shorten it"],
        ),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", ["9", "at most", "8"]),
        ({"tempature": 1}, "tempature", ["did you mean temperature?"]),
    ],
)
def test_refusals_name_field_value_and_remedy(
    sent: dict[str, Any], param: str, parts: list[str]
) -> None:
    error = refusal(**sent)
    assert (error.param or "").split("[")[0] == param
    for part in parts:
        assert part in error.message
