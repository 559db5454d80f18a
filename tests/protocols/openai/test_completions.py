"""Bodies of /v1/completions: the four forms of a prompt, and the fields that chat has not."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.openai.answers import OpenAICall
from trtllm_truss.protocols.openai.body import (
    COMPLETION_REFUSED,
    COMPLETION_UNUSED,
    CompletionFields,
    parse_completion,
)


def call(**fields: Any) -> OpenAICall:
    return parse_completion({"model": "m", "prompt": "Hi", **fields}, {})


def test_every_official_field_has_its_place() -> None:
    official = {
        *CompletionCreateParamsStreaming.__annotations__,
        *CompletionCreateParamsNonStreaming.__annotations__,
    }
    assert official <= {*CompletionFields.model_fields, *COMPLETION_REFUSED, *COMPLETION_UNUSED}


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("Hi", ["Hi"], [None]),
        (["a", "b"], ["a", "b"], [None, None]),
        ([1, 2], [None], [(1, 2)]),
        ([[1, 2], [3]], [None, None], [(1, 2), (3,)]),
        (["a", [3]], ["a", None], [None, (3,)]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, texts: list[Any], ids: list[Any]) -> None:
    requests = call(prompt=prompt).requests
    assert [request.prompt for request in requests] == texts
    assert [request.prompt_ids for request in requests] == ids
    assert all(request.messages is None for request in requests)


def test_fields() -> None:
    parsed = call(echo=True, n=2, best_of=2, add_special_tokens=False, suffix="", user="u")
    (request,) = parsed.requests
    assert (request.echo, request.n, request.add_special_tokens) == (True, 2, False)
    assert (request.max_tokens, request.max_tokens_given) == (16, False)
    assert call(max_tokens=0, echo=True).requests[0].max_tokens == 0
    assert parse_completion({"prompt": "Hi"}, {"max_tokens": 9}).requests[0].max_tokens == 9
    assert call(logprobs=0).requests[0].log_probs == 0
    assert call(logprobs=1).requests[0].log_probs == 1
    assert call(logprobs=5).requests[0].log_probs == 5
    scored = call(echo=True, logprobs=1, temperature=0, max_tokens=1).requests[0]
    assert (scored.log_probs, scored.scores_prompt, scored.ignore_eos) == (1, True, True)
    assert not call(echo=True, logprobs=1, max_tokens=2).requests[0].ignore_eos
    assert call(max_tokens=3).requests[0].max_tokens_given


def test_model_may_be_left_out() -> None:
    assert parse_completion({"prompt": "Hi"}, {}).model == "model"


@pytest.mark.parametrize(
    ("sent", "param", "parts"),
    [
        ({"prompt": None}, "prompt", ["prompt is missing"]),
        ({"prompt": ""}, "prompt", ['prompt is ""', "not empty"]),
        ({"prompt": []}, "prompt", ["prompt is []"]),
        ({"prompt": 5}, "prompt", ["prompt is 5"]),
        ({"prompt": ["a", ""]}, "prompt", ['prompt[1] is ""']),
        ({"prompt": ["a", []]}, "prompt", ["prompt[1] is []"]),
        ({"prompt": [[1, -1]]}, "prompt", ["prompt[0][1] is -1", "token id"]),
        ({"prompt": [1, 2**31]}, "prompt", ["prompt[1] is 2147483648", "token id"]),
        ({"prompt": [True]}, "prompt", ["prompt[0] is true"]),
        ({"prompt": [1, "a"]}, "prompt", ['prompt[1] is "a"']),
        ({"prompt": "\ud800"}, "prompt", ["surrogate"]),
        ({"suffix": "end"}, "suffix", ["not supported", "Leave it out"]),
        ({"best_of": 3}, "best_of", ["best_of is 3", "n, 1"]),
        ({"logprobs": 6}, "logprobs", ["at most 5"]),
        ({"max_tokens": 0}, "max_tokens", ["max_tokens is 0", "without echo"]),
        ({"logprobs": True}, "logprobs", ["whole number"]),
        ({"messages": []}, "messages", ["not a field"]),
    ],
)
def test_refusals(sent: dict[str, Any], param: str, parts: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call(**sent)
    assert caught.value.param == param
    for part in parts:
        assert part in caught.value.message


def test_a_missing_prompt() -> None:
    with pytest.raises(InvalidRequest, match="prompt is missing"):
        parse_completion({"model": "m"}, {})


def test_ids_of_a_prompt_that_is_too_long_are_not_looked_at() -> None:
    """The length of a prompt is refused first, by the engine's limit."""
    ids: list[Any] = [*range(100), -1]
    (request,) = parse_completion({"prompt": ids}, {}, context_tokens=100).requests
    assert request.prompt_ids == tuple(ids)
    for body in ({"prompt": ids[1:]}, {"prompt": ids, "truncate_prompt_tokens": 5}):
        with pytest.raises(InvalidRequest, match=r"prompt\[\d+\] is -1; it must be a token id"):
            parse_completion(body, {}, context_tokens=100)
