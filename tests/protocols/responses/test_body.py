"""Bodies of `/v1/responses` to requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.responses.body import (
    REFUSED,
    UNUSED,
    ResponsesCall,
    ResponsesFields,
    parse_response,
)
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import REST_OF_CONTEXT, Guide
from trtllm_truss.tool_calls.catalog import TOOL_FORMATS

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
TIME = {"type": "function", "name": "time", "description": "Get the time.", "parameters": None}
NAMED = {"type": "function", "name": "time"}
FORMATS = ModelFormats(TOOL_FORMATS["hermes"])


def parsed(defaults: dict[str, Any] | None = None, **fields: Any) -> ResponsesCall:
    return parse_response({"input": "Hi", **fields}, defaults or {}, FORMATS)


def test_a_body_with_the_input_only() -> None:
    call = parsed()
    assert call.request.messages == [{"role": "user", "content": "Hi"}]
    assert call.request.max_tokens == REST_OF_CONTEXT
    assert not call.request.max_tokens_given
    assert call.new_parser is None
    assert not call.stream
    assert call.echo["tool_choice"] == "auto"
    assert call.echo["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


def test_fields_reach_the_request() -> None:
    call = parsed(
        instructions="Be brief.",
        model="",
        max_output_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=5,
        stop=["x"],
        stream=True,
        stream_options={"include_obfuscation": False},
        reasoning={"effort": "low", "summary": "auto"},
        chat_template_kwargs={"enable_thinking": False},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        metadata={"a": "b"},
    )
    request = call.request
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert (request.max_tokens, request.max_tokens_given) == (7, True)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 0.5, 3, 5)
    assert request.stop_words == ("x",)
    assert request.chat.variables == {"reasoning_effort": "low", "enable_thinking": False}
    assert request.log_probs == 0
    assert call.stream
    assert call.alternatives == 0
    assert call.echo["metadata"] == {"a": "b"}
    assert call.echo["reasoning"] == {"effort": "low", "summary": "auto"}
    assert call.summarizes
    assert [request.name(name) for name in ("messages", "max_tokens", "guide")] == [
        "input",
        "max_output_tokens",
        "text.format",
    ]


def test_defaults_of_the_operator() -> None:
    call = parsed({"max_tokens": 9, "temperature": 0.25, "stop_words": ["y"], "stream": True})
    assert (call.request.max_tokens, call.request.max_tokens_given) == (9, False)
    assert call.echo["temperature"] == 0.25
    assert call.echo["max_output_tokens"] is None
    assert not call.stream
    assert parsed({"max_tokens": 9}, max_output_tokens=3).request.max_tokens == 3


@pytest.mark.parametrize(
    ("form", "guide"),
    [
        ({"type": "text"}, None),
        (
            {"type": "json_schema", "name": "n", "strict": True, "schema": PARAMETERS},
            Guide("json_schema", json.dumps(PARAMETERS), is_strict=True),
        ),
        ({"type": "regex", "regex": "a+"}, Guide("regex", "a+")),
    ],
)
def test_the_format_of_the_text(form: Any, guide: Guide | None) -> None:
    call = parsed(text={"format": form, "verbosity": "low"})
    assert call.request.guide == guide
    assert call.echo["text"] == {"format": form, "verbosity": "low"}


def test_tools_are_nested_for_templates() -> None:
    call = parsed(tools=[WEATHER, {**TIME, "defer_loading": False}])
    assert call.request.chat.tools == [
        {"type": "function", "function": {key: WEATHER[key] for key in WEATHER if key != "type"}},
        {"type": "function", "function": {"name": "time", "description": "Get the time."}},
    ]
    assert call.echo["tools"][0] == {**WEATHER, "description": None}
    assert call.new_parser is not None


SPACE = {"type": "namespace", "name": "mail", "description": "Of Codex."}
PATCH = {"type": "custom", "name": "patch", "description": "Patch.", "format": {"type": "text"}}


def test_namespaces_and_custom_tools_are_functions_for_the_model() -> None:
    """Source: `NamespaceTool` and `CustomTool` of OpenAI's client; Codex 0.169 sends both."""
    space = {**SPACE, "tools": [WEATHER, TIME, PATCH]}
    call = parsed(tools=[WEATHER, space, PATCH], client_metadata={"x-codex-window-id": "1"})
    assert call.request.chat.tools is not None
    functions = [tool["function"] for tool in call.request.chat.tools]
    assert [function["name"] for function in functions] == [
        *("weather", "mail__weather", "mail__time", "mail__patch", "patch"),
    ]
    assert functions[1]["description"] == "mail__*: Of Codex."
    assert functions[2]["description"] == "Get the time."
    assert functions[3]["parameters"] == functions[4]["parameters"]
    assert functions[4]["parameters"]["properties"] == {"input": {"type": "string"}}
    assert call.origins["mail__patch"] == ("patch", "mail", True)
    assert call.echo["tools"][1:] == [space, PATCH]


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "time"}, "mail__time"),
        ({"type": "function", "name": "mail__time"}, "mail__time"),
        ({"type": "function", "name": "weather"}, "weather"),
        ({"type": "function", "name": "weather", "namespace": "mail"}, "mail__weather"),
        ({"type": "custom", "name": "patch"}, "patch"),
    ],
)
def test_a_choice_finds_a_tool_by_its_own_name(choice: Any, name: str) -> None:
    space = {**SPACE, "tools": [WEATHER, TIME]}
    for chosen in (choice, {"type": "allowed_tools", "mode": "required", "tools": [choice]}):
        call = parsed(tools=[WEATHER, space, PATCH], tool_choice=chosen)
        assert call.request.guide is not None
        offered = call.request.guide.text + call.request.chat.answer_prefix
        assert f'"{name}"' in offered


@pytest.mark.parametrize(
    "choice",
    [NAMED, "required", {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}],
)
def test_a_forced_call(choice: Any) -> None:
    call = parsed(tools=[WEATHER, TIME], tool_choice=choice)
    assert call.request.guide is not None
    offered = call.request.guide.text + call.request.chat.answer_prefix
    assert "time" in offered
    assert ("weather" in offered) == (choice == "required")
    strict = [name for name, _ in call.request.guide.strict_parts]
    assert strict == (["the function weather"] if choice == "required" else [])
    assert call.echo["tool_choice"] == choice


def test_fields_without_effect_are_accepted() -> None:
    fields = {
        **{name: {"any": ["thing"]} for name in UNUSED},
        "store": True,
        "service_tier": "flex",
    }
    neutral = {name: field.neutral[0] for name, field in REFUSED.items() if field.neutral}
    parsed(**fields, **neutral, previous_response_id=None, conversation=None, tools=[])


def test_every_field_of_the_clients_type_is_known() -> None:
    known = ResponsesFields.model_fields.keys() | REFUSED.keys() | UNUSED.keys()
    assert ResponseCreateParamsStreaming.__annotations__.keys() <= known


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the earlier items in"),
        ({"conversation": "conv_1"}, "conversation", "send the earlier items in input"),
        ({"background": True}, "background", "answers are not stored"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send instructions and input"),
        ({"truncation": "auto"}, "truncation", "truncate_prompt_tokens keeps"),
        ({"max_tokens": 5}, "max_tokens", "the limit is max_output_tokens"),
        ({"n": 2}, "n", "a response has one choice"),
        ({"max_output_tokens": 0}, "max_output_tokens", "must be at least 1"),
        ({"nonsense": 1}, "nonsense", "nonsense is not a field"),
        ({"include": ["everything"]}, "include", r'include\[0\] is "everything"'),
        ({"top_logprobs": 2}, "top_logprobs", "but include lacks message.output_text.logprobs"),
        ({"stream_options": {}}, "stream_options", "but stream is false"),
        ({"reasoning": {"effort": "huge"}}, "reasoning", r'reasoning.effort is "huge"'),
        ({"reasoning": {"depth": 1}}, "reasoning.depth", "reasoning.depth is not a field"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "text.format.schema is"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", 'text.format.type is "xml"'),
        ({"metadata": {"a": 1}}, "metadata", "metadata.a is 1; it must be a string"),
        ({"metadata": {"a": "b" * 513}}, "metadata", "at most 512 characters"),
        ({"metadata": {"a" * 65: "b"}}, "metadata", "at most 64 characters"),
        ({"tools": [{"type": "web_search"}]}, "tools", 'tools.0. is {"type": "web_search"}'),
        (
            {"tools": [{"type": "web_search"}]},
            "tools",
            'off in the client .Codex: web_search = "dis',
        ),
        ({"tools": [{"type": "file_search"}]}, "tools", "must be of type function"),
        ({"tools": [{"type": "mcp"}]}, "tools", "send its tools as functions"),
        ({"tools": [{**PATCH, "format": {"type": "grammar"}}]}, "tools", r"0\].format is .*free"),
        ({"tools": [{**SPACE, "tools": 5}]}, "tools", r"tools\[0\].tools is 5; it must be a list"),
        ({"tools": [{**SPACE, "tools": [5]}]}, "tools", r"tools\[0\].tools\[0\] is 5; it must be"),
        ({"tools": [{**SPACE, "name": ""}]}, "tools", r'tools\[0\].name is ""'),
        ({"tools": [{**SPACE, "tools": [TIME] * 2000}] * 3}, "tools", "tools has 6000 functions"),
        ({"tools": [PATCH, {**TIME, "name": "patch"}]}, "tools", r"tools\[1\].name is .* no other"),
        ({"tools": [{**TIME, "name": "a b"}]}, "tools", r"tools\[0\].name must be"),
        ({"tools": [TIME], "tool_choice": {"type": "mcp"}}, "tool_choice", "must be auto, none"),
        ({"tools": [TIME], "tool_choice": {**NAMED, "name": "x"}}, "tool_choice", 'not "x"'),
        ({"tool_choice": "required"}, "tool_choice", "send tools"),
        (
            {"tools": [{**TIME, "description": "\ud800"}]},
            "tools",
            "tools contains a lone surrogate",
        ),
        ({"instructions": "\ud800"}, "instructions", "instructions contains a lone surrogate"),
        ({"tools": [{**TIME, "x": 1e999}]}, "tools", "a number that is out of range"),
        (
            {"tools": [TIME], "include": ["message.output_text.logprobs"]},
            "include",
            "not available with tools or reasoning",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        parsed(**fields)
    assert raised.value.param == param


def test_the_input_is_required() -> None:
    with pytest.raises(InvalidRequest, match=r"^input is missing\.$"):
        parse_response({"model": "m"}, {})


def test_fields_of_other_servers() -> None:
    assert parsed(guided_regex="a+").request.guide == Guide("regex", "a+")
    assert parsed(min_p=0, top_k=-1, stop_token_ids=[5]).request.stop_token_ids == (5,)
    with pytest.raises(InvalidRequest, match=r"text\.format and guided_regex both constrain"):
        parsed(guided_regex="a+", text={"format": {"type": "json_object"}})
    logged = parsed(include=["message.output_text.logprobs"], top_logprobs=1)
    assert (logged.request.log_probs, logged.alternatives) == (1, 1)
