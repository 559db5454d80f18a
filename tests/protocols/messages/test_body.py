"""Bodies of `/v1/messages` to requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.conversation.blocks import ECHOED
from trtllm_truss.protocols.messages.body import (
    REFUSED,
    UNUSED,
    MessagesCall,
    parse_messages,
)
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.tool_calls.catalog import TOOL_FORMATS

HELLO = {"role": "user", "content": "Hello"}
BODY: dict[str, Any] = {"model": "", "max_tokens": 9, "messages": [HELLO]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
TIME = {"name": "time", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
CALLED = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
}


def parse(*, defaults: dict[str, Any] | None = None, **fields: Any) -> MessagesCall:
    formats = ModelFormats(TOOL_FORMATS["hermes"])
    return parse_messages({**BODY, **fields}, defaults or {}, formats)


def request(**fields: Any) -> GenerationRequest:
    return parse(**fields).request


def template_messages(*messages: Any, **fields: Any) -> list[Any]:
    return list(request(messages=[*messages, HELLO], **fields).messages or ())[:-1]


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def test_a_minimal_body() -> None:
    call = parse()
    assert (call.model, call.stream, call.new_parser) == ("", False, None)
    assert call.request.messages == [HELLO]
    assert call.request.max_tokens == 9
    assert not call.request.max_tokens_given
    assert call.request.chat.add_generation_prompt
    assert call.request.sampling.temperature == 1
    assert call.request.guide is None


def test_fields_reach_the_request() -> None:
    made = request(
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0,
        top_k=7,
        seed=3,
        min_tokens=2,
        beam_width=2,
    )
    assert made.stop_words == ("END",)
    assert made.beam_width == 2
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0, 7)
    assert (sampling.seed, sampling.min_tokens) == (3, 2)
    assert made.name("stop_words") == "stop_sequences"


def test_defaults_replace_omitted_fields() -> None:
    defaults = {
        **{"stop_words": ["x"], "temperature": 0.2, "max_tokens": 5, "stream": True},
        **{"seed": 1, "bad_words": ["y"], "ignore_eos": False, "length_penalty": 1.0},
    }
    call = parse(defaults=defaults, temperature=0.7)
    assert not call.stream
    assert call.request.max_tokens == 9
    assert call.request.stop_words == ("x",)
    assert call.request.bad_words == ("y",)
    assert (call.request.sampling.temperature, call.request.sampling.seed) == (0.7, 1)


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.", cache_control={})]])
def test_the_system_prompt_is_the_first_message(system: Any) -> None:
    assert request(system=system).messages == [{"role": "system", "content": "Be brief."}, HELLO]
    assert request(system="").messages == [HELLO]


def test_adjacent_messages_of_a_role_are_one() -> None:
    made = request(
        system="A", messages=[{"role": "system", "content": "B"}, HELLO, said("user", text("you"))]
    )
    assert made.messages == [
        {"role": "system", "content": "A\nB"},
        {"role": "user", "content": "Hello\nyou"},
    ]


def test_calls_results_and_thoughts() -> None:
    found = template_messages(
        HELLO,
        said(
            "assistant",
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look.", citations=None),
            {**CALL, "caller": {"type": "direct"}},
            {**CALL, "id": "toolu_2"},
        ),
        said(
            "user",
            result("21"),
            {**result([text("a"), text("b")]), "tool_use_id": "toolu_2"},
            text("So?"),
        ),
        said("assistant", CALL),
        said("user", result("no city", is_error=True)),
        said("assistant", CALL),
        said("user", result("Error: none", is_error=True)),
        said("assistant", CALL),
        said("user", result()),
        tools=[WEATHER],
    )
    assert found == [
        HELLO,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "I look.",
            "tool_calls": [CALLED, {**CALLED, "id": "toolu_2"}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "21"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "a\nb"},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no city"},
        {"role": "assistant", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: none"},
        {"role": "assistant", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
    ]


def test_results_of_every_kind_are_texts() -> None:
    reference = {"type": "tool_reference", "tool_name": "weather"}
    page = {"type": "search_result", "source": "a.org", "title": "A", "content": [text("b")]}
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain"}}
    plain["source"]["data"] = "Words."  # type: ignore[index]
    pdf = {"type": "document", "source": {"type": "base64", "data": "x"}}
    found = template_messages(
        HELLO,
        said("assistant", CALL),
        said("user", text("So?"), result([text("a"), IMAGE, reference, page, plain, pdf])),
    )
    assert (
        found[2:]
        == [
            {
                "role": "tool",
                "tool_call_id": "toolu_1",
                "content": "a\n[image omitted]\n[tool weather]\nA\na.org\nb\nWords.\n"
                "[file omitted]",
            },
            {"role": "user", "content": "So?\nHello"},
        ][: len(found) - 2]
    )


def test_a_call_whose_input_was_cut_goes_on() -> None:
    for given, kept in (('{"city": "Os', '{"city": "Os'), ("null", {}), ('{"a": 1}', {"a": 1})):
        found = template_messages(HELLO, said("assistant", {**CALL, "input": given}))
        assert found[1]["tool_calls"][0]["function"]["arguments"] == kept


def test_a_history_with_calls_needs_no_tools() -> None:
    call = parse(messages=[HELLO, said("assistant", CALL), said("user", result("21"))])
    assert call.new_parser is None
    assert (call.request.messages or ())[-1]["content"] == "21"


def test_a_last_message_of_the_assistant_is_continued() -> None:
    chat = request(messages=[HELLO, {"role": "assistant", "content": "{"}]).chat
    assert chat.continue_final_message
    assert not chat.add_generation_prompt


def test_tools_are_described_and_offered() -> None:
    made = request(tools=[{**WEATHER, "strict": True, "cache_control": {}, "type": "custom"}, TIME])
    assert made.chat.tools == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
    ]
    assert made.guide is None


def test_the_choice_of_tools() -> None:
    tools = [WEATHER, TIME]
    none = parse(tools=tools, tool_choice={"type": "none"})
    assert none.new_parser is None
    assert none.request.chat.tools is None
    one = parse(tools=tools, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert one.new_parser is not None
    assert not one.new_parser()._parallel
    for choice, expected in (({}, False), ({"disable_parallel_tool_use": False}, True)):
        by_default = parse(
            tools=tools,
            tool_choice={"type": "auto", **choice},
            defaults={"parallel_tool_calls": False},
        )
        assert by_default.new_parser is not None
        assert by_default.new_parser()._parallel is expected
    forced = request(tools=tools, tool_choice={"type": "any"})
    assert forced.guide is not None
    assert '"weather"' in forced.guide.text
    assert '"time"' in forced.guide.text
    named = request(tools=tools, tool_choice={"type": "tool", "name": "time"})
    assert named.guide is not None
    assert '"weather"' not in named.guide.text
    assert named.names["guide"] == "tool_choice"
    strict = request(tools=[{**WEATHER, "strict": True}, TIME], tool_choice={"type": "any"})
    assert strict.guide is not None
    assert [name for name, _ in strict.guide.strict_parts] == ["the function weather"]


@pytest.mark.parametrize(
    ("thinking", "switch", "shown"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, True, True),
        ({"type": "disabled"}, False, True),
        ({"type": "adaptive", "display": "omitted"}, None, False),
        (None, None, True),
    ],
)
def test_thinking_switches_the_template(thinking: Any, switch: bool | None, shown: bool) -> None:
    call = parse(thinking=thinking, max_tokens=4096)
    wanted = {} if switch is None else {"enable_thinking": switch, "thinking": switch}
    assert call.request.chat.variables == wanted
    assert call.shows_thinking is shown


def test_a_budget_leaves_room_for_the_answer() -> None:
    """Without tools, as at Anthropic, where thoughts between calls may exceed it together."""
    thinking = {"type": "enabled", "budget_tokens": 2048}
    with pytest.raises(InvalidRequest, match=r"budget_tokens is 2048; it must be below max_tok"):
        parse(thinking=thinking, max_tokens=2048)
    assert parse(thinking=thinking, max_tokens=2049).shows_thinking
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    assert parse(thinking=thinking, max_tokens=2048, tools=tools).shows_thinking
    assert parse(thinking={**thinking, "type": "disabled"}, max_tokens=1)


def test_the_output_format_is_a_guide() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    made = request(output_config={"effort": "low", "format": form})
    assert made.guide == Guide("json_schema", json.dumps(SCHEMA))
    assert made.chat.variables == {"reasoning_effort": "low"}
    assert made.name("guide") == "output_config.format"
    assert request(output_format=form).guide == made.guide
    assert request(output_config={"format": None}).guide is None


def test_fields_without_effect_pass() -> None:
    neutral = {name: field.neutral[0] for name, field in REFUSED.items() if field.neutral}
    nulls = dict.fromkeys(("system", "tools", "thinking", *REFUSED), None)
    for fields in (neutral, nulls, {name: {"any": 1} for name in UNUSED}):
        assert request(**fields).messages == [HELLO]


def test_keys_that_clients_echo_are_passed_over() -> None:
    extra = dict.fromkeys((ECHOED - {"type", "id"}) | {"__own"}, "x")
    answer = {**said("assistant", text("Hi", **extra), {**CALL, **extra}), **extra, "id": "msg_1"}
    found = template_messages(HELLO, answer, said("user", result("21", **extra)), tools=[WEATHER])
    assert found[1] == {"role": "assistant", "content": "Hi", "tool_calls": [CALLED]}


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
OPEN = {"role": "assistant", "content": " "}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing."),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1."),
        ({"messages": []}, "messages is []; it must not be empty."),
        (
            {"messages": [{"role": "user", "content": []}]},
            'messages is [{"role": "user", "content": []}]; it must be a list with some content.',
        ),
        ({"max_token": 1}, "max_token is not a field of this request; did you mean max_tokens?"),
        ({"min_tokens": 10}, "min_tokens is 10; it must be at most max_tokens, 9."),
        ({"stop_sequences": [""]}, 'stop_sequences[0] is ""; it must not be empty.'),
        *(
            ({name: "x"}, f'{name} is "x"; it is not supported: {field.reason}. Leave it out.')
            for name, field in REFUSED.items()
        ),
        ({"system": 5}, "system is 5; it must be a string or a list of blocks."),
        ({"system": [IMAGE]}, 'system[0] is of type "image"; only blocks of type text are read'),
        ({"messages": ["x"]}, 'messages[0] is "x"; it must be an object.'),
        ({"messages": [{"role": "tool", "content": ""}]}, 'messages[0].role is "tool"; it must be'),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing."),
        ({"messages": [{**HELLO, "name": "x"}]}, "messages[0].name is not a field; the fields"),
        ({"messages": [said("user", IMAGE)]}, 'messages[0].content[0] is of type "image"; only'),
        ({"messages": [said("user", {"type": "document"})]}, 'is of type "document"'),
        ({"messages": [said("user", CALL)]}, 'is of type "tool_use"; only blocks of type text, t'),
        ({"messages": [said("user", "x")]}, 'content[0] is "x"; it must be an object with a type'),
        ({"messages": [said("user", *[text("a")] * 4097)]}, "messages[0].content has 4097 items;"),
        ({"messages": [said("user", text(5))]}, "content[0].text is 5; it must be a string."),  # type: ignore[arg-type]
        ({"messages": [said("user", text("a", x=1))]}, "content[0].x is not a field"),
        (
            {"messages": [said("user", result([{"type": "tool_use"}]))]},
            'content[0].content[0] is of type "tool_use"; only blocks of type text are read in',
        ),
        (
            {"messages": [said("user", {"type": "tool_result"})]},
            "content[0].tool_use_id is null; it must be a string.",
        ),
        ({"messages": [HELLO, OPEN]}, "the last of messages is by the assistant and has no text"),
        ({"messages": [HELLO, said("assistant", text("a"), CALL)]}, "end messages with one by the"),
        ({"messages": [HELLO, said("assistant")]}, "end messages with one by the user"),
        ({"tools": ["x"]}, 'tools[0] is "x"; it must be an object.'),
        ({"tools": [{"type": "web_search_20250305"}]}, "only tools of type custom are supported"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing."),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name must be a string"),
        ({"tools": [{**WEATHER, "input_schema": 1}]}, "tools[0].input_schema is 1; it must be a J"),
        ({"tools": [{**WEATHER, "description": 1}]}, "tools[0].description is 1; it must be a s"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading is true; it is"),
        ({"tools": [{**WEATHER, "parameters": {}}]}, "tools[0].parameters is not a field"),
        (
            {"tools": [TIME], "tool_choice": {"type": "tool", "name": "x"}},
            'tool_choice.name is "x"',
        ),
        ({"tools": [TIME], "tool_choice": {"type": "tool", "name": []}}, "tool_choice.name is []"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type is any; send tools."),
        ({"tool_choice": {"type": "required"}}, 'tool_choice.type is "required"; it must be one'),
        ({"tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x is not a field"),
        (
            {"tools": [TIME], "tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use is 1; it must be true or false.",
        ),
        ({"thinking": {"type": []}}, "thinking.type is []; it must be one of enabled, disabled"),
        ({"thinking": {"type": "enabled", "display": "all"}}, 'thinking.display is "all"; it must'),
        ({"output_config": {"effort": "most"}}, 'output_config.effort is "most"; it must be one'),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget is not a field"),
        ({"output_config": {"format": {"type": "text"}}}, 'output_config.format.type is "text"'),
        ({"output_config": {"format": []}}, "output_config.format is []; it must be an object."),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema is null; it must be a"),
        (
            {"output_format": {}, "output_config": {"format": {}}},
            "output_config.format and output_format are both given; send the former.",
        ),
    ],
    ids=lambda value: str(value)[:80],
)
def test_a_fault_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(**fields)
    assert message in raised.value.message
