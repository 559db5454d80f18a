"""Tensors -> a validated request, or an error that names the input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.backends.token_model.backend_requests import (
    LIMITS,
    OUTPUTS,
    PROMPT,
    request,
    tensors,
    word_list,
)

from trtllm_backends.token_model.request import ModelLimits, read_request
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING, RequestField
from trtllm_truss.requests import Guide


def test_defaults_are_those_of_the_cpp_backend() -> None:
    read = request()

    assert read.prompt.tolist() == PROMPT
    assert read.prompt.dtype == np.int64
    assert read.end_id is None  # without end_id it never stops early
    assert not read.streaming
    assert read.echo_prompt
    assert read.sampling.decoding.is_greedy
    assert read.sampling.seed == 0
    assert read.sampling.min_tokens == 1


@pytest.mark.parametrize("row", SAMPLING, ids=lambda row: row.name)
def test_sampling_is_read_by_all_its_names(row: RequestField) -> None:
    value = 7 if row.kind is int else 0.5
    assert getattr(request().sampling, row.attribute) == row.engine_default
    for name in row.tensors:
        assert getattr(request(**{name: value}).sampling, row.attribute) == value


@pytest.mark.parametrize(
    ("inputs", "greedy"),
    [
        ({"temperature": 0.7}, True),  # TensorRT-LLM is greedy without top_k and top_p
        ({"runtime_top_k": 1, "temperature": 2.0}, True),
        ({"runtime_top_k": 50, "temperature": 0.0}, True),
        ({"runtime_top_p": 1.0, "temperature": 0.0}, True),
        ({"runtime_top_p": 1.0, "temperature": 1e-6}, True),
        ({"runtime_top_p": 0.0}, True),
        ({"runtime_top_p": -1.0}, True),
        ({"runtime_top_k": 50}, False),
        ({"runtime_top_p": 1.0}, False),
        ({"runtime_top_p": 0.9, "temperature": 0.7}, False),
        ({"min_p": 0.1}, True),
        ({"min_p": 0.1, "runtime_top_p": 1.0}, False),
    ],
)
def test_inputs_that_select_greedy_decoding(inputs: dict[str, Any], greedy: bool) -> None:
    assert request(**inputs).sampling.decoding.is_greedy is greedy


def test_fp32_numbers_read_as_they_were_written() -> None:
    assert request(temperature=0.7).sampling.temperature == 0.7


def test_the_prompt_ends_at_input_lengths() -> None:
    assert request(input_lengths=2).prompt.tolist() == PROMPT[:2]


def test_the_answer_is_clipped_to_the_context() -> None:
    limits = ModelLimits(context_length=10, vocab_size=49152)

    assert request(output_len=1000, limits=limits).max_new_tokens == 10 - len(PROMPT)


@pytest.mark.parametrize(
    ("inputs", "setting", "echoed"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"exclude_input_in_output": True}, False, False),
        ({"exclude_input_in_output": False}, True, True),
        ({"streaming": True}, False, False),
        ({"streaming": True, "exclude_input_in_output": False}, False, False),
    ],
)
def test_the_request_overrides_the_setting_for_echoing_the_prompt(
    inputs: dict[str, Any], setting: bool, echoed: bool
) -> None:
    limits = ModelLimits(context_length=100, vocab_size=49152, exclude_input_in_output=setting)

    assert request(limits=limits, **inputs).echo_prompt is echoed


def test_outputs_are_made_only_if_requested_and_asked_for() -> None:
    everything = (*OUTPUTS, "cum_log_probs", "output_log_probs", "num_input_tokens", "batch_index")

    assert request(outputs=everything).outputs == {*OUTPUTS, "batch_index"}
    assert request(return_log_probs=True).outputs == set(OUTPUTS)
    assert "cum_log_probs" in request(outputs=everything, return_log_probs=True).outputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"output_len": 0}, "request_output_len is 0"),
        ({"input_lengths": 6}, "input_lengths is 6"),
        ({"input_lengths": 0}, "input_lengths is 0"),
        ({"prompt": [49152]}, "input_ids must be token ids from 0 to 49151"),
        ({"prompt": [-1]}, "input_ids must be token ids"),
        ({"prompt": [1] * 8192}, r"Prompt length \(8192\) exceeds maximum input length \(8191\)"),
        ({"input_ids": np.ones((2, 3), np.int32)}, r"input_ids has shape \[2, 3\]"),
        ({"temperature": -0.5}, "temperature is -0.5; send a value of 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": np.ones(2, np.float32)}, r"temperature has shape \[2\]"),
        ({"runtime_top_p": 1.5}, "runtime_top_p is 1.5; send a value from 0 to 1"),
        ({"runtime_top_k": 1025}, "runtime_top_k is 1025; send a value from 0 to 1024"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0; send a value from -2 to 2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; send a value above 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_p": 1.5}, "min_p is 1.5; send a value from 0 to 1"),
        ({"len_penalty": -1.0}, "len_penalty is -1.0; send a value of 0 or more"),
        ({"beam_width": 5}, "Requested beam width 5 is incorrect"),
        ({"beam_width": 2, "streaming": True}, "only supported with beam width of 1"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature 0.5 is not supported with beam_width"),
        ({"beam_width": 2, "min_tokens": 9}, "min_tokens 9 is not supported with beam_width"),
        ({"beam_width": 2}, "beam_width above 1 needs end_id on the CPU engine"),
    ],
)
def test_invalid_inputs_are_named(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        request(**inputs)


def text(value: str) -> np.ndarray[Any, Any]:
    return np.array([[value.encode()]], object)


def guide(kind: str, value: str = "", **inputs: Any) -> dict[str, Any]:
    tensors = {"guided_decoding_guide_type": text(kind), "guided_decoding_guide": text(value)}
    return {"end_id": 2, **tensors, **inputs}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, None),
        (guide(""), None),
        (guide("regex", "é+"), Guide("regex", "é+")),
        (guide("ebnf_grammar", 'root ::= "a"'), Guide("ebnf_grammar", 'root ::= "a"')),
        (guide("json_schema", "{}"), Guide("json_schema", "{}")),
    ],
)
def test_guides(inputs: dict[str, Any], expected: Guide | None) -> None:
    assert request(**inputs).guide == expected


def test_the_guide_type_json_is_any_object_or_array() -> None:
    read = request(end_id=2, guided_decoding_guide_type=text("json")).guide

    assert read is not None
    assert {kind["type"] for kind in json.loads(read.text)["anyOf"]} == {"object", "array"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (guide("xml", "<a/>"), "guided_decoding_guide_type is 'xml'; send json, json_schema, "),
        (guide("", "a"), "guided_decoding_guide is given without guided_decoding_guide_type"),
        (guide("regex"), "guided_decoding_guide_type is regex, but guided_decoding_guide is empty"),
        (guide("regex", "a", beam_width=2), "beam_width 2 is not supported with guided_decoding_g"),
        (guide("regex", "a", min_tokens=2), "min_tokens 2 is not supported with guided_decoding_g"),
        (guide("regex", "a", end_id=-1), "guided_decoding_guide_type needs end_id"),
        (
            {"guided_decoding_guide_type": np.array([[b"\xff"]], object)},
            "guided_decoding_guide_type is not UTF-8",
        ),
    ],
)
def test_guides_that_are_refused_unseen(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        request(**inputs)


@pytest.mark.parametrize("name", OUTPUTS)
def test_mandatory_outputs(name: str) -> None:
    others = tuple(output for output in OUTPUTS if output != name)
    with pytest.raises(
        InvalidRequest, match=f"{name} tensor must be present in list of output tensors"
    ):
        request(outputs=others)


@pytest.mark.parametrize("name", ["input_ids", "request_output_len"])
def test_mandatory_inputs(name: str) -> None:
    given = type(tensors())({key: array for key, array in tensors() if key != name})
    with pytest.raises(InvalidRequest, match=f"{name} is not present in the request"):
        read_request("", given, OUTPUTS, LIMITS)


UNSUPPORTED = {
    "bad_words_list": (word_list([5, 6]), np.zeros((1, 2, 0), np.int32)),
    "embedding_bias": (np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)),
    "draft_input_ids": (np.ones((1, 2), np.int32), np.zeros((1, 0), np.int32)),
    "prompt_embedding_table": (np.ones((1, 2, 2), np.float16), np.ones((1, 0, 2), np.float16)),
    "lora_task_id": (np.array([3], np.uint64), np.array([0], np.uint64)),
    "num_return_sequences": (2, 1),
    "beam_search_diversity_rate": (0.5, 0.0),
    "runtime_top_p_decay": (0.5, 1.0),
    "runtime_top_p_min": (0.5, 1e-6),
    "runtime_top_p_reset_ids": (7, -1),
    "return_context_logits": (True, False),
    "return_generation_logits": (True, False),
    "return_perf_metrics": (True, False),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_inputs_are_named(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=f"{name} is not supported by the CPU engine; leave it out"
    ):
        request(**{name: UNSUPPORTED[name][0]})


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_neutral_values_pass(name: str) -> None:
    request(**{name: UNSUPPORTED[name][1]})


def test_bad_words_without_a_word_pass() -> None:
    request(bad_words_list=np.array([[[0], [-1]]], np.int32))


def test_a_request_larger_than_the_kv_cache_is_refused() -> None:
    limits = ModelLimits(
        context_length=8192, vocab_size=49152, kv_cache_tokens=320, max_beam_width=4
    )
    most = 320 - len(PROMPT) + 1

    assert request(output_len=most, limits=limits).kv_cache_tokens == 320
    with pytest.raises(InvalidRequest, match="need 321 tokens of KV cache, which holds 320"):
        request(output_len=most + 1, limits=limits)
    with pytest.raises(InvalidRequest, match="beam_width 2"):
        request(output_len=most, limits=limits, beam_width=2, end_id=2)
