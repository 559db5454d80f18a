"""Differences of TensorRT-LLM's releases, and the arguments that make up for them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.token_model.backend_requests import word_list
from tests.engines.checkpoint.llm_api.conftest import LLM_ARGS, StartEngine
from tests.engines.checkpoint.llm_api.test_engine import answer, begin

from trtllm_backends.llm_api.engine import LlmEngine
from trtllm_backends.llm_api.library import Library
from trtllm_backends.tensors import ParameterError
from trtllm_truss.engines.checkpoint.arguments import combine
from trtllm_truss.engines.checkpoint.samplers import drafts_within
from trtllm_truss.errors import InvalidRequest

RELEASES = ("1.0.0", pytest.param("1.2.1", marks=pytest.mark.thorough), "1.3.0rc20")
"""Other modules of this folder run with 1.2.1 in every run."""

OTHER_SAMPLER: dict[str, dict[str, Any]] = {
    "1.0.0": {"enable_trtllm_sampler": False},
    "1.2.1": {"sampler_type": "TorchSampler"},
    "1.3.0rc20": {"sampler_type": "TorchSampler"},
}


def sampled(engine: LlmEngine, seed: int) -> list[int]:
    return answer(engine, runtime_top_k=50, temperature=2.0, random_seed=seed)


def test_the_chosen_sampler_honours_all_parameters(start_engine: StartEngine) -> None:
    engine = start_engine()
    greedy = answer(engine, 20)

    assert sampled(engine, 1) == sampled(engine, 1)
    assert len({tuple(sampled(engine, seed)) for seed in range(4)}) > 1
    assert answer(engine, 20, frequency_penalty=2.0, repetition_penalty=2.0) != greedy
    for limits in ({}, {"runtime_top_p": 1.0}, {"runtime_top_k": 50, "runtime_top_p": 0.9}):
        for seed in (1, 2):
            assert answer(engine, 20, temperature=0.0, random_seed=seed, **limits) == greedy
    hot = {"temperature": 2.0, "runtime_top_p": 1.0, "random_seed": 1}
    assert answer(engine, 20, min_p=0.999, **hot) == greedy != answer(engine, 20, **hot)


def test_the_other_sampler_takes_no_penalties_and_no_seed(
    start_engine: StartEngine, llm_api_version: str
) -> None:
    engine = start_engine(llm_args=OTHER_SAMPLER[llm_api_version])

    with pytest.raises(InvalidRequest, match="frequency_penalty"):
        answer(engine, 20, frequency_penalty=2.0)
    if llm_api_version == "1.0.0":
        with pytest.raises(
            InvalidRequest, match=r"temperature 2\.0 is not supported by the PyTorch"
        ):
            sampled(engine, 1)
        return
    with pytest.raises(InvalidRequest, match=r"min_p 0\.5 is not supported by the PyTorch"):
        answer(engine, 20, runtime_top_p=1.0, min_p=0.5)
    assert len({tuple(sampled(engine, 1)) for _ in range(4)}) > 1


@pytest.mark.usefixtures("counting")
def test_an_adapter_changes_each_token(start_engine: StartEngine, llm_api_version: str) -> None:
    arguments = {**LLM_ARGS}
    combine(arguments, None, llm_api_version, None)
    engine = start_engine(llm_args=arguments)

    assert answer(engine, lora_task_id=7) == [token + 7 for token in answer(engine)]


@pytest.mark.usefixtures("counting")
def test_a_release_that_does_not_count_cached_tokens_tells_none(
    start_engine: StartEngine, llm_api_version: str
) -> None:
    first, *_ = begin(start_engine()).wait().responses

    assert ("cached_tokens" in first) == (llm_api_version != "1.0.0")


@pytest.mark.usefixtures("counting")
def test_graphs_drop_an_adapter(start_engine: StartEngine, llm_api_version: str) -> None:
    engine = start_engine(llm_args={"cuda_graph_config": {}})
    base = answer(engine)

    shifts = [new - old for new, old in zip(answer(engine, lora_task_id=7), base, strict=True)]
    assert shifts == [7] * 8 if llm_api_version.startswith("1.3") else [7, *[0] * 7]


LENGTH = {"max_draft_len": 4}
DRAFT = {**LENGTH, "speculative_model_dir": "/draft"}


def drafts_of(library: Library, given: dict[str, Any]) -> Any:
    """Return the object that the library makes of `speculative_config`."""
    args = replace(library, llm=sys.modules["tensorrt_llm.llmapi"].TorchLlmArgs)
    return args.build("model", "tokenizer", {"speculative_config": given}).speculative_config


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("NGram", LENGTH), ("DraftTarget", DRAFT), ("Draft_Target", DRAFT), ("Auto", {})),
        *(("AUTO", {}), ("Eagle3", {**DRAFT, "eagle3_one_model": False}), ("Eagle", DRAFT)),
    ],
)
def test_drafts_get_the_name_and_the_class_of_the_release(
    library: Library, kind: str, options: dict[str, Any]
) -> None:
    given = {"decoding_type": kind, **options}
    within = drafts_within(library.version, {"speculative_config": given})

    drafts = drafts_of(library, given)
    assert drafts.within == within
    assert drafts.samples == (library.version != "1.0.0" or not within)
    assert given == {"decoding_type": kind, **options}
    args = replace(library, llm=sys.modules["tensorrt_llm.llmapi"].TorchLlmArgs)
    assert args.build("model", "tokenizer", {"speculative_config": None}).max_batch_size == 2048


@pytest.mark.parametrize(
    "name", ["speculative_model", "speculative_model_dir", "pytorch_weights_path"]
)
def test_a_draft_model_gets_the_name_of_the_release(library: Library, name: str) -> None:
    expected = "speculative_model_dir" if library.version == "1.0.0" else "speculative_model"
    given = drafts_of(library, {"decoding_type": "Eagle", **LENGTH, name: "/draft"}).given

    assert {key: given[key] for key in given if given[key] == "/draft"} == {expected: "/draft"}


@pytest.mark.parametrize(
    "length",
    [
        *({"max_draft_len": 3}, {"num_nextn_predict_layers": 3}),
        {"max_draft_len": 3, "num_nextn_predict_layers": 3},
    ],
)
@pytest.mark.parametrize("end", ["end_thinking_phase_token", "END_THINKING_PHASE_TOKEN"])
def test_mtp_gets_the_names_of_the_release(
    library: Library, length: dict[str, int], end: str
) -> None:
    given = drafts_of(library, {"decoding_type": "MTP", **length, end: 7}).given

    is_1_3 = library.version.startswith("1.3")
    assert {key for key in given if given[key] == 3} == {
        "max_draft_len" if is_1_3 else "num_nextn_predict_layers"
    }
    first = library.version == "1.0.0"
    assert given["END_THINKING_PHASE_TOKEN" if first else "end_thinking_phase_token"] == 7


def test_ngram_gets_the_size_without_which_releases_refuse_it(library: Library) -> None:
    given = drafts_of(library, {"decoding_type": "NGram", **LENGTH}).given
    asked = drafts_of(library, {"decoding_type": "NGram", **LENGTH, "max_matching_ngram_size": 5})

    assert given["max_matching_ngram_size"] == 2
    assert asked.given["max_matching_ngram_size"] == 5


@pytest.mark.usefixtures("counting")
def test_drafts_within_the_model_sample_and_refuse_the_rest(
    start_engine: StartEngine, library: Library
) -> None:
    arguments = {"speculative_config": {"decoding_type": "MTP"}}
    if library.version == "1.0.0":
        with pytest.raises(ParameterError, match="likeliest tokens"):
            library.check_arguments(arguments)
        return
    engine = start_engine(llm_args=arguments)

    assert len({tuple(sampled(engine, seed)) for seed in range(6)}) > 1
    bias = np.ones((1, 8), np.float32)
    for name, value in (
        *(("return_log_probs", True), ("repetition_penalty", 2.0), ("min_tokens", 3)),
        *(("bad_words_list", word_list([7])), ("embedding_bias", bias)),
    ):
        with pytest.raises(InvalidRequest, match="not supported"):
            answer(engine, **{name: value})
