"""Requests of Dynamo's frontend, as 1.6.1 sends them, to ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtllm_dynamo.requests import read_request, to_chunk
from trtllm_truss.cli.main import USAGE_STATUS, main
from trtllm_truss.errors import RequestError
from trtllm_truss.requests import (
    REST_OF_CONTEXT,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    Guide,
    TokenDelta,
    Usage,
)

SENT = {
    "token_ids": [1, 2, 3],
    "model": "model",
    "sampling_options": {"n": 1, "temperature": 0.5, "top_k": None, "seed": 7},
    "stop_conditions": {"max_tokens": 9, "stop": ["x"], "stop_token_ids_hidden": [2]},
    "output_options": {"logprobs": None, "skip_special_tokens": True},
}


def read(defaults: dict[str, Any] | None = None, **groups: dict[str, Any]) -> GenerationRequest:
    sent = {name: {**SENT[name], **value} for name, value in groups.items()}  # type: ignore[dict-item]
    return read_request({**SENT, **sent}, defaults or {}, ("poet",))


def test_a_plain_request() -> None:
    request = read()
    assert request.prompt_ids == (1, 2, 3)
    assert (request.max_tokens, request.max_tokens_given) == (9, True)
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 7)
    assert request.stop_token_ids == (2,)
    assert request.stop_words == ()
    assert request.log_probs is None


def test_without_a_limit_the_context_limits() -> None:
    request = read(stop_conditions={"max_tokens": None})
    assert (request.max_tokens, request.max_tokens_given) == (REST_OF_CONTEXT, False)


def test_the_operators_defaults_apply_to_omitted_fields() -> None:
    request = read(
        {"max_tokens": 5, "top_p": 0.9, "temperature": 0.1}, stop_conditions={"max_tokens": None}
    )
    assert (request.max_tokens, request.max_tokens_given) == (5, False)
    assert (request.sampling.top_p, request.sampling.temperature) == (0.9, 0.5)


def test_default_ends_beside_those_that_the_frontend_adds() -> None:
    """Every request has the model's own as `stop_token_ids_hidden`."""
    defaults = {"stop_token_ids": [5], "end_id": 6}
    assert read(defaults).stop_token_ids == (5, 6, 2)
    assert read(defaults, stop_conditions={"stop_token_ids": [7]}).stop_token_ids == (7, 6, 2)
    assert read({"end_id": -1}).ignore_eos


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"generation": {"stop": "x"}}, r'generation\.stop_words is \["x"\]'),
        ({"serving": {"reasoning_limit_tokens": 9}}, r"serving\.reasoning_limit_tokens is 9"),
    ],
)
def test_settings_about_text_are_refused_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: dict[str, Any], named: str
) -> None:
    config = {"model_metadata": {"engine_repository": "org/name", **section}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["dynamo", "--truss", str(tmp_path)]) == USAGE_STATUS
    assert re.search(named, capsys.readouterr().err)


def test_the_name_of_an_adapter_chooses_it() -> None:
    assert read_request({**SENT, "model": "poet"}, {}, ("poet",)).model == "poet"
    assert read().model != "poet"


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        ({"regex": "a+", "json": None, "backend": "xgrammar"}, Guide("regex", "a+")),
        ({"grammar": 'root ::= "a"'}, Guide("ebnf_grammar", 'root ::= "a"')),
        ({"choice": ["a", "b"]}, Guide("ebnf_grammar", 'root ::= "a" | "b"')),
    ],
)
def test_guides(guide: dict[str, Any], expected: Guide) -> None:
    assert read(sampling_options={"guided_decoding": guide}).guide == expected


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 0), (3, 3)])
def test_one_log_probability_is_that_of_the_token(asked: int, given: int) -> None:
    assert read(output_options={"logprobs": asked}).log_probs == given


@pytest.mark.parametrize(
    ("group", "options", "named"),
    [
        ("sampling_options", {"min_p": 1.5}, "min_p"),
        ("sampling_options", {"n": 2}, "n is 2"),
        ("sampling_options", {"temperature": -1}, "temperature"),
        ("sampling_options", {"guided_decoding": {"structural_tag": "{}"}}, "structural_tag"),
        (
            "sampling_options",
            {"guided_decoding": {"json": {}, "whitespace_pattern": " "}},
            "whitespace_pattern",
        ),
        ("stop_conditions", {"max_thinking_tokens": 5}, "max_thinking_tokens is 5"),
        ("stop_conditions", {"max_thinking_tokens": 0}, "max_thinking_tokens is 0"),
        ("output_options", {"prompt_logprobs": 1}, "prompt_logprobs is 1.*echo"),
    ],
)
def test_what_the_worker_cannot_honour_is_named(
    group: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        read(**{group: options})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_args": {"sampling_options": {"allowed_token_ids": [5]}}}, "allowed_token_ids"),
        (
            {"extra_args": {"sampling_options": {"bad_words_token_ids": [[5]]}}},
            "bad_words_token_ids is given",
        ),
        ({"routing": {"cache_salt": "a"}}, "cache_salt is"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds is given"),
        ({"multi_modal_data": {"image_url": [{}]}}, "multi_modal_data is given"),
        ({"prefill_result": {"disaggregated_params": {}}}, "prefill_result is given"),
    ],
)
def test_what_is_beside_the_options_is_not_dropped(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        read_request({**SENT, **fields}, {})


def test_fields_without_effect_here() -> None:
    beside = {"sampling_options": {"detokenize": False}, "nvext": {"worker_id": 1}}
    routing = {"dp_rank": 0, "priority": 5, "cache_salt": None}
    assert read_request({**SENT, "extra_args": beside, "routing": routing}, {}) == read()


def test_the_end_of_a_tool_call_reaches_the_frontend() -> None:
    ends = {"stop_token_ids": [5], "stop_token_ids_hidden": [2], "stop_token_ids_visible": [5]}
    request = read(stop_conditions=ends)
    assert request.stop_token_ids == (2,)
    assert request.ignore_eos
    guide = {"guided_decoding": {"regex": "a"}}
    assert not read(stop_conditions=ends, sampling_options=guide).ignore_eos


def test_a_wrong_guide_is_named_as_it_was_sent() -> None:
    with pytest.raises(RequestError, match="guided_json is"):
        read(sampling_options={"guided_decoding": {"json": "{"}})


def test_the_last_chunk_has_reason_and_usage() -> None:
    end = GenerationEnd(FinishReason.LENGTH, Usage(3, 2, cached_tokens=1))
    assert to_chunk(TokenDelta((7,), log_probs=(-0.5,), end=end)) == {
        "token_ids": [7],
        "index": 0,
        "log_probs": [-0.5],
        "top_logprobs": [[{"rank": 1, "token_id": 7, "token": None, "logprob": -0.5}]],
        "finish_reason": "length",
        "completion_usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_alternatives_are_ranked() -> None:
    chunk = to_chunk(TokenDelta((7,), log_probs=(-0.5,), alternatives=(((7, -0.5), (8, -1.0)),)))
    assert [(each["rank"], each["token_id"]) for each in chunk["top_logprobs"][0]] == [
        (1, 7),
        (2, 8),
    ]
