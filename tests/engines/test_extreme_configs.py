"""Extreme values in each field of a `config.json`: refused by name, or harmless."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import complete, listing, llama, settings_for
from tests.engines.engine_configs import Json, new_config, old_config, rank_names
from tests.support.inspection import inspect_config

from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.engines.model_config import parse_checkpoint
from trtllm_truss.errors import ArtifactError, TrussError
from trtllm_truss.serving.preparation import cache_capacity

EXTREME: list[Any] = [
    *(-1, 0, 1, 3, 4097, 2**31 - 1, 2**31, 2**63, 0.5, 1e308, math.nan, math.inf, True, None),
    *("", "x", "--model_dir=/etc", "9" * 5000, "*" * 10**6, [], [[[]]], [1], ["x"] * 5000, {}),
    {"a": {}},
]
CHECKPOINT = llama(
    **{"auto_map": {"AutoConfig": "a.B"}, "head_dim": 128, "num_local_experts": 8},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "full_attention_interval": 4},
    **{"rope_scaling": {"type": "yarn"}, "multi_query": False, "tie_word_embeddings": True},
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)
HYBRIDS = [
    {"hybrid_override_pattern": "M*M-"},
    {"layer_types": ["full_attention"] * 32},
    {"block_configs": [{"attention": {"n_heads_in_group": 4}}] * 32},
    {"text_config": {"hidden_size": 64}},
]
HOST = HostInfo("H100:2", "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3")
LONGEST_MESSAGE = 2000


def changed(config: Any, value: Any) -> Iterator[Any]:
    """Yield copies of a configuration with the value in one place each."""
    places = config.items() if isinstance(config, dict) else enumerate(config)
    for name, inner in places:
        other = copy.copy(config)
        other[name] = value
        yield other
        if isinstance(inner, dict) or (isinstance(inner, list) and len(inner) < 9):
            for each in changed(inner, value):
                other = copy.copy(config)
                other[name] = each
                yield other


def examine(config: Json, files: list[tuple[str, int]]) -> list[str]:
    """Do what `init`, `check` and a start do with a configuration; return their messages."""
    settings = settings_for()
    try:
        engine = with_settings(inspect_config(config, files), settings, "1.2.1")
        findings = [*check_compatibility(settings, engine, HOST)]
        capacity = cache_capacity(settings, engine, HOST)
    except TrussError as error:
        return [error.message]
    findings += capacity.diagnostics if capacity else ()
    return [*(finding.message for finding in findings), capacity.summary if capacity else ""]


@pytest.mark.parametrize("value", EXTREME, ids=lambda value: str(value)[:20])
def test_no_value_ends_in_a_traceback(value: Any) -> None:
    tp2 = old_config(tp=2)
    names = ["config.json", *rank_names(tp2), "rank0.engine", "rank1.engine"]
    cases = [(config, [(name, 9) for name in names]) for config in (tp2, new_config(tp=2))]
    cases += [({**CHECKPOINT, **hybrid}, listing()) for hybrid in ({}, *HYBRIDS)]
    for config, files in cases:
        for case in changed(config, value):
            for message in examine(case, files):
                assert len(message) < LONGEST_MESSAGE, message[:LONGEST_MESSAGE]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_hidden_layers": 10**8}, "num_hidden_layers is 100000000; it must be an integer fro"),
        ({"num_hidden_layers": 2**31 - 1}, "from 1 to 4096"),
        ({"vocab_size": 2**31 - 1}, "vocab_size is 2147483647; it must be an integer from 1 to 41"),
        (
            {"hybrid_override_pattern": "M" * 5000},
            "hybrid_override_pattern has 5000 layers; it",
        ),
        ({"num_attention_heads": math.nan}, "num_attention_heads is NaN"),
        ({"torch_dtype": "float8"}, 'torch_dtype is "float8"; it must be one of float16, bfloat16'),
        ({"torch_dtype": "--model_dir=/etc"}, 'torch_dtype is "--model_dir=/etc"'),
        ({"torch_dtype": ["float16"]}, 'torch_dtype is ["float16"]'),
        ({"architectures": ["A" * 10**6]}, "architectures[0] is "),
    ],
)
def test_a_checkpoint_out_of_bounds_is_refused_by_name(changes: Json, part: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_checkpoint({**llama(), **changes})
    assert part in caught.value.message


def test_an_engine_out_of_bounds_is_refused_by_name() -> None:
    config = new_config()
    config["pretrained_config"]["vocab_size"] = 2**31 - 1
    with pytest.raises(
        ArtifactError, match=r"vocab_size is 2147483647; it must be at most 4194304"
    ):
        inspect_config(config, [("config.json", 9), ("rank0.engine", 9)])


@pytest.mark.parametrize("name", ["torch.bfloat16", "bfloat16", None])
def test_usual_types(name: str | None) -> None:
    assert parse_checkpoint(llama(torch_dtype=name)).dtype in ("bfloat16", "float16")
    assert complete(llama(torch_dtype=name)).number_formats is not None
