"""The sampler selected for each TensorRT-LLM release, and the backend's use of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import listing, llama, settings_for
from tests.support.inspection import inspect_config

from trtllm_backends.llm_api.request import served_inputs
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import exact_release

CPP, TORCH = {"sampler_type": "TRTLLMSampler"}, {"sampler_type": "TorchSampler"}
AUTO, MTP = {"sampler_type": "auto"}, {"speculative_config": {"decoding_type": "MTP"}}
GREEDY = {"allow_advanced_sampling": False}
NGRAM = {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3}}
DRAFT_MODEL = {
    "decoding_type": "DraftTarget",
    "max_draft_len": 3,
    "speculative_model": "/draft",
}
CPP_OF_1_0, MIXED = {"enable_trtllm_sampler": True}, {"enable_mixed_sampler": True}
NAMES = ("sampler_type", "enable_trtllm_sampler", "enable_mixed_sampler")


def engine_of(version: str | None, given: dict[str, Any]) -> Engine:
    settings = settings_for(runtime={"llm_args": given})
    return with_settings(inspect_config(llama(), listing()), settings, version)


@pytest.mark.parametrize(
    ("version", "given", "chosen", "penalties", "seeds"),
    [
        ("1.0.0", {}, CPP_OF_1_0, True, True),
        ("1.0.3.2510", {}, CPP_OF_1_0, True, True),
        ("1.0.0", CPP_OF_1_0, CPP_OF_1_0, True, True),
        ("1.0.0", NGRAM, MIXED, False, False),
        (
            *("1.0.0", {"enable_trtllm_sampler": False, **MIXED}),
            *({"enable_trtllm_sampler": False, **MIXED}, False, False),
        ),
        ("1.1.0", {}, CPP, True, True),
        ("1.1.0", AUTO, AUTO, True, True),
        ("1.2.1", {}, CPP, True, True),
        ("1.2.1", AUTO, AUTO, False, False),
        ("1.2.1", {**AUTO, "max_beam_width": 2}, AUTO, True, True),
        ("1.2.1", TORCH, TORCH, False, False),
        ("1.2.1", MTP, {}, False, False),
        ("1.3.0rc0", {}, CPP, True, True),
        ("1.3.0rc23", {}, CPP, True, True),
        ("1.3.0rc23", TORCH, TORCH, False, False),
        ("1.3.0rc24", {}, {}, True, False),
        ("1.3.0rc24", NGRAM, {}, True, False),
        ("1.3.0rc26", MTP, {}, False, False),
        ("1.3.0", MTP, {}, False, True),
        ("1.3.0", {"speculative_config": DRAFT_MODEL}, {}, False, True),
        ("1.2.1", {**CPP, **MTP}, CPP, False, False),
        ("1.3.0rc29", {}, {}, True, True),
        ("1.3.0", {}, {}, True, True),
        ("1.4.0rc1", {}, {}, True, True),
    ],
)
def test_every_release_samples_as_requests_ask(
    version: str, given: dict[str, Any], chosen: dict[str, Any], penalties: bool, seeds: bool
) -> None:
    engine = engine_of(version, given)
    arguments = engine.llm_args or {}
    assert {name: arguments[name] for name in NAMES if name in arguments} == chosen
    assert ("bad_words_list" in served_inputs(version, arguments)) is penalties
    host = HostInfo(runtime_version=version)
    found = {each.code for each in check_compatibility(settings_for(), engine, host)}
    assert ("seeds_ignored" not in found) is seeds


@pytest.mark.parametrize(
    ("version", "arguments", "serves"),
    [
        *(("1.0.0", CPP_OF_1_0, False), ("1.2.1", CPP, False)),
        *(("1.2.1", {}, True), ("1.3.0", {}, True), ("1.2.1", NGRAM, True), ("1.3.0", MTP, False)),
    ],
)
def test_alternatives_of_a_token(version: str, arguments: dict[str, Any], serves: bool) -> None:
    assert ("num_top_logprobs" in served_inputs(version, arguments)) is serves


@pytest.mark.parametrize(
    ("version", "given", "param"),
    [
        ("1.0.0", {"enable_trtllm_sampler": False}, "enable_trtllm_sampler"),
        ("1.0.0", MTP, "speculative_config"),
        ("1.1.0", MTP, "speculative_config"),
        ("1.2.0rc2", MTP, "speculative_config"),
        (
            *("1.2.1", {"speculative_config": {"decoding_type": "MTP", **GREEDY}}),
            "speculative_config.allow_advanced_sampling",
        ),
    ],
)
def test_a_sampler_that_ignores_all_requests_is_refused(
    version: str, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(SettingsError, match="likeliest tokens") as caught:
        engine_of(version, given)
    assert caught.value.param == f"llm_args.{param}"


def test_fields_that_no_default_may_set() -> None:
    penalties = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
    assert not engine_of("1.2.1", {}).refuses("1.2.1")
    assert engine_of("1.2.1", TORCH).refuses("1.2.1") == {*penalties, "min_p"}
    assert engine_of("1.3.0", MTP).refuses("1.3.0") == {*penalties, "min_p"}
    assert engine_of("1.0.0", NGRAM).refuses("1.0.0") == {*penalties, "min_p", "temperature"}
    assert not engine_of(None, {}).refuses(None)
    beams = {"max_beam_width": 2}
    assert engine_of("1.2.1", beams).refuses("1.2.1") == {*penalties, "temperature", "min_tokens"}


@pytest.mark.parametrize(
    ("version", "given", "served"),
    [
        ("1.0.0", {}, {"min_p", "temperature"}),
        ("1.0.0", NGRAM, set()),
        ("1.1.0", TORCH, {"temperature"}),
        ("1.2.1", {}, {"min_p", "temperature"}),
        ("1.2.1", TORCH, {"temperature"}),
        ("1.2.1", MTP, {"temperature"}),
        ("1.3.0rc24", {}, {"temperature"}),
        ("1.3.0rc25", {}, {"min_p", "temperature"}),
        ("1.3.0", {}, {"min_p", "temperature"}),
        ("1.3.0", MTP, {"temperature"}),
    ],
)
def test_min_p_and_the_temperature(version: str, given: dict[str, Any], served: set[str]) -> None:
    inputs = served_inputs(version, engine_of(version, given).llm_args or {})
    assert inputs & {"min_p", "temperature"} == served


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1", "1.3.0"])
def test_drafts_of_two_models_sample_in_each_release(version: str) -> None:
    two_models = {"decoding_type": "MTP", "mtp_eagle_one_model": False}
    for given in (NGRAM, *([] if version == "1.0.0" else [{"speculative_config": two_models}])):
        engine = engine_of(version, given)
        assert engine.reports_top_log_probs
        assert engine.biased_tokens


def test_drafts_within_the_model_report_no_alternatives() -> None:
    within = engine_of("1.2.1", MTP)
    assert not within.reports_top_log_probs
    assert not within.biased_tokens


def test_an_unknown_release_leaves_the_sampler_to_the_backend() -> None:
    assert not (engine_of(None, {}).llm_args or {}).keys() & {*NAMES}


def test_pre_releases_are_ordered() -> None:
    versions = ["1.2.1", "1.3.0a1", "1.3.0rc2", "1.3.0rc22", "1.3.0rc22.post1", "1.3.0", "dev"]
    assert [*map(exact_release, versions)] == sorted(map(exact_release, versions))
