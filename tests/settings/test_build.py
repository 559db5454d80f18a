"""`model_metadata.build`: types, ranges and consistent lengths."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.loading import parse_settings


def parsed(**block: Any) -> Build:
    build = parse_settings(
        {"model_metadata": {"build": {"checkpoint_repository": "org/model", **block}}}
    ).build
    assert build is not None
    return build


def test_build_takes_the_place_of_an_engine() -> None:
    assert parsed().backend == "tensorrtllm"
    with pytest.raises(SettingsError, match="engine_repository is missing"):
        parse_settings({"model_metadata": {"build": None}})


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({}, None),
        ({"max_seq_len": 4096}, 4096),
        ({"max_input_len": 2048, "max_output_len": 1024}, 3072),
        ({"max_input_len": 2048, "max_seq_len": 2048}, 2048),
    ],
)
def test_lengths(block: dict[str, int], tokens: int | None) -> None:
    assert parsed(**block).sequence_tokens == tokens


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"max_output_len": 512}, "max_output_len is 512: max_output_len counts in addition"),
        (
            {"max_input_len": 9, "max_output_len": 9, "max_seq_len": 20},
            "max_seq_len is 20: it counts",
        ),
        (
            {"max_input_len": 2048, "max_seq_len": 16},
            "max_seq_len is 16: it is less than max_input_len",
        ),
        ({"max_num_tokens": 8, "opt_num_tokens": 9}, "opt_num_tokens is 9"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"tokens_per_block": 48}, "tokens_per_block is 48"),
        ({"max_batchsize": 4}, "did you mean max_batch_size?"),
        (
            {"quantization": {"method": "awq", "alpha": 0.5}},
            "quantization.awq.alpha is not a setting",
        ),
        ({"quantization": {"method": "awq", "calibsize": 8}}, "did you mean calib_size?"),
        ({"quantization": {"method": "smoothquant", "alpha": 1.5}}, "alpha is 1.5"),
        ({"quantization": {"method": "gptq"}}, "'smoothquant', 'awq'"),
        ({"rotary_scaling": {"type": "yarn", "factor": 2.0}}, 'rotary_scaling.type is "yarn"'),
        ({"checkpoint_repository": ""}, 'checkpoint_repository is ""'),
        ({"chatglm_model_version": "chatglm_6b"}, 'chatglm_model_version is "chatglm_6b"'),
    ],
)
def test_refused(block: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(**block)
    assert part in caught.value.message
