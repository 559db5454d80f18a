"""LMI bodies: defaults, names, aliases and errors."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.decoding import GREEDY, Decoding, meant
from trtllm_truss.endpoints.routes import is_lmi, is_tgi_client
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.lmi import ALIASES, UNSUPPORTED, LmiCall, LmiForm, Parameters, parse_lmi
from trtllm_truss.requests import Guide


def call(tgi: bool = False, **parameters: Any) -> LmiCall:
    return parse_lmi({"inputs": "Deep Learning is", "parameters": parameters}, {}, tgi=tgi)


def refusal(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_lmi(body, {}, tgi=False)
    assert caught.value.status == 400
    return caught.value


def test_defaults_are_lmis() -> None:
    parsed = parse_lmi({"inputs": "Deep Learning is"}, {}, tgi=False)
    (request,) = parsed.requests
    assert request.prompt == "Deep Learning is"
    assert (request.max_tokens, request.max_tokens_given) == (30, False)
    assert meant(request.sampling) == GREEDY
    assert not request.token_details
    assert (parsed.form, parsed.listed) == (LmiForm.JSON, False)
    assert (parsed.details, parsed.return_full_text, parsed.tgi) == (False, False, False)
    assert parsed == parse_lmi({"inputs": "Deep Learning is", "parameters": None}, {}, tgi=False)


def test_settings_give_defaults_that_a_body_overrides() -> None:
    defaults = {"max_tokens": 7, "temperature": 0.5, "stop_words": ["x"], "stream": True}
    body = {"inputs": "a", "parameters": {"temperature": 0.25}}
    (request,) = parse_lmi(body, defaults, tgi=False).requests
    assert (request.max_tokens, request.max_tokens_given) == (7, False)
    assert meant(request.sampling) == Decoding(temperature=0.25)
    assert request.stop_words == ("x",)


@pytest.mark.parametrize(
    ("sent", "decoding"),
    [
        ({"do_sample": True}, Decoding(1, 0.8, 5, 0.85)),
        ({"do_sample": True, "top_k": 9}, Decoding(1, 0.8, 9, 0.85)),
        ({"do_sample": True, "temperature": 1.5}, Decoding(1, 1.5, 5, 0.85)),
        ({"do_sample": True, "top_k": 0, "top_p": 0}, Decoding(1, 0.8)),
        ({"do_sample": True, "min_p": 0.1}, Decoding(1, 0.8, 5, 0.85, 0.1)),
        ({"min_p": 0.1}, Decoding(min_p=0.1)),
        ({"do_sample": True, "temperature": 0}, GREEDY),
        ({"do_sample": False, "temperature": 1.5, "top_p": 0.5}, GREEDY),
        ({"top_k": 0, "top_p": 0}, GREEDY),
        ({"temperature": 0}, GREEDY),
        ({"temperature": 0.7}, Decoding(temperature=0.7)),
        ({"top_p": 0.7}, Decoding(top_p=0.7)),
        ({"top_k": 7}, Decoding(top_k=7)),
        ({"top_k": -1}, GREEDY),
        ({"do_sample": True, "top_k": -1}, Decoding(1, 0.8, 0, 0.85)),
        ({"top_k": 7, "top_p": 0.5, "temperature": 2}, Decoding(1, 2, 7, 0.5)),
    ],
)
def test_sampling(sent: dict[str, Any], decoding: Decoding) -> None:
    assert meant(call(**sent).requests[0].sampling) == decoding


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"seed": 7}, "seed", 7),
        ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
        ({"presence_penalty": 1}, "presence_penalty", 1),
        ({"frequency_penalty": 1}, "frequency_penalty", 1),
        ({"length_penalty": 2}, "length_penalty", 2),
        ({"min_length": 3}, "min_tokens", 3),
    ],
)
def test_parameters_reach_the_sampling(sent: dict[str, Any], name: str, value: object) -> None:
    assert getattr(call(**sent).requests[0].sampling, name) == value


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"max_new_tokens": 5}, "max_tokens", 5),
        ({"stop_sequences": ["a", "b"]}, "stop_words", ("a", "b")),
        ({"stop": "a"}, "stop_words", ("a",)),
        ({"stop": ""}, "stop_words", ()),
        ({"stop_token_ids": [3]}, "stop_token_ids", (3,)),
        ({"bad_sequences": ["a"]}, "bad_words", ("a",)),
        ({"ignore_eos_token": True}, "ignore_eos", True),
        ({"truncate": 9}, "truncate_prompt", 9),
        ({"lora_task_id": 2}, "lora_task_id", 2),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"details": True}, "token_details", True),
        ({"details": True, "decoder_input_details": True}, "prompt_details", True),
    ],
)
def test_parameters_reach_the_request(sent: dict[str, Any], name: str, value: object) -> None:
    request = call(**sent).requests[0]
    assert getattr(request, name) == value
    assert call(max_new_tokens=5).requests[0].max_tokens_given


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_aliases(alias: str) -> None:
    values = {"stop": ["a"], "ignore_eos": True, "runtime_top_p": 0.5, "len_penalty": 0.5}
    value = values.get(alias, 3)
    assert call(**{alias: value}) == call(**{ALIASES[alias]: value})


@pytest.mark.parametrize(
    ("grammar", "guide"),
    [
        ({"type": "json", "value": {"a": 1}}, Guide("json_schema", '{"a": 1}')),
        ({"type": "json", "value": '{"a": 1}'}, Guide("json_schema", '{"a": 1}')),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": {"a": 1}}},
            Guide("json_schema", '{"a": 1}'),
        ),
        ({"type": "regex", "value": "a+"}, Guide("regex", "a+")),
    ],
)
def test_grammar(grammar: dict[str, Any], guide: Guide) -> None:
    assert call(grammar=grammar).requests[0].guide == guide


@pytest.mark.parametrize(
    ("stream", "formatter", "tgi", "form"),
    [
        (None, None, False, LmiForm.JSON),
        (True, None, False, LmiForm.JSON_LINES),
        (True, "sse", False, LmiForm.EVENTS),
        (True, "jsonlines", True, LmiForm.JSON_LINES),
        (True, None, True, LmiForm.EVENTS),
        (False, None, True, LmiForm.JSON),
        (False, "jsonlines", False, LmiForm.JSON_LINES),
    ],
)
def test_forms(stream: Any, formatter: Any, tgi: bool, form: LmiForm) -> None:
    body = {"inputs": "a", "stream": stream, "parameters": {"output_formatter": formatter}}
    parsed = parse_lmi(body, {}, tgi=tgi)
    assert parsed.form is form
    assert parsed.requests[0].token_details is (form is not LmiForm.JSON or tgi)


def test_a_list_of_inputs() -> None:
    parsed = parse_lmi({"inputs": ["a", "b"]}, {}, tgi=False)
    assert parsed.listed
    assert [request.prompt for request in parsed.requests] == ["a", "b"]


def test_tgi_returns_details_by_default() -> None:
    assert call(tgi=True).details
    assert not call(tgi=True, details=False).details


def test_dispatch() -> None:
    assert is_lmi({"inputs": None})
    assert not is_lmi({"prompt": "inputs"})
    assert is_tgi_client("unknown/None; hf_hub/0.36.0; python/3.12.3")
    assert not is_tgi_client("python-requests/2.32")


def test_neutral_values_are_accepted() -> None:
    neutral = {name: field.neutral[0] for name, field in UNSUPPORTED.items() if field.neutral}
    assert call(**neutral) == call()
    assert call(**dict.fromkeys(UNSUPPORTED)) == call()
    assert call(**dict.fromkeys([*Parameters.model_fields, *ALIASES])) == call()


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_fields_are_named(name: str) -> None:
    error = refusal({"inputs": "a", "parameters": {name: "x"}})
    assert error.param == name
    assert UNSUPPORTED[name].reason in error.message


@pytest.mark.parametrize(
    ("body", "param", "parts"),
    [
        ({}, "inputs", ["inputs is missing", "messages"]),
        ({"inputs": None}, "inputs", ["inputs is null"]),
        ({"inputs": ""}, "inputs", ["non-empty"]),
        ({"inputs": 5}, "inputs", ["inputs is 5"]),
        ({"inputs": []}, "inputs", ["inputs is []"]),
        ({"inputs": ["a", ""]}, "inputs", ["inputs[1]"]),
        ({"inputs": "\ud800"}, "inputs", ["surrogate"]),
        ({"inputs": ["a"], "stream": True}, "inputs", ["cannot be streamed"]),
        ({"inputs": "a", "parameters": []}, "parameters", ["must be an object"]),
        ({"inputs": "a", "stream": 1}, "stream", ["must be true or false"]),
        ({"inputs": "a", "max_new_tokens": 5}, "max_new_tokens", ["send it inside"]),
        ({"inputs": "a", "zzzz": 5}, "zzzz", ["not a field"]),
    ],
)
def test_refused_bodies(body: dict[str, Any], param: str, parts: list[str]) -> None:
    error = refusal(body)
    assert error.param == param
    for part in parts:
        assert part in error.message


@pytest.mark.parametrize(
    ("sent", "param", "parts"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens", ["parameters: max_new_tokens is 0", "least 1"]),
        ({"do_sample": "yes"}, "do_sample", ["true or false"]),
        ({"top_p": 1.5}, "top_p", ["at most 1"]),
        ({"top_k": 1025}, "top_k", ["at most 1024"]),
        ({"stop": ["a"], "stop_sequences": ["b"]}, "stop_sequences", ["both given"]),
        ({"stop": True}, "stop_sequences", ["must be a list"]),
        ({"min_length": 40}, "min_length", ["40", "at most max_new_tokens, 30"]),
        ({"decoder_input_details": True}, "decoder_input_details", ["needs details"]),
        ({"output_formatter": "json_chat"}, "output_formatter", ["json_chat", "jsonlines"]),
        ({"grammar": {"type": "xml", "value": ""}}, "grammar", ["xml", "regex"]),
        ({"grammar": {"type": "regex", "value": ""}}, "grammar", ["value"]),
        ({"grammar": {"type": "regex", "value": {"a": 1}}}, "grammar", ["value"]),
        ({"max_new_token": 3}, "max_new_token", ["did you mean max_new_tokens?"]),
    ],
)
def test_refused_parameters(sent: dict[str, Any], param: str, parts: list[str]) -> None:
    error = refusal({"inputs": "a", "parameters": sent})
    assert error.param == param
    for part in parts:
        assert part in error.message


def test_a_stream_cannot_be_json() -> None:
    body = {"inputs": "a", "stream": True, "parameters": {"output_formatter": "json"}}
    assert "choose jsonlines or sse" in refusal(body).message
