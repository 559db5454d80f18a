from __future__ import annotations

import pytest

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.releases import INPUTS, OUTPUTS, rows_for
from trtllm_truss.settings.runtime import PARAMETERS


def names(rows):
    return [row.name for row in rows]


def test_counts_of_the_pinned_version():
    assert len(rows_for(INPUTS, PINNED_VERSION)) == 62
    assert len(rows_for(OUTPUTS, PINNED_VERSION)) == 21


@pytest.mark.parametrize(
    "rows", [INPUTS, OUTPUTS, *(rows_for(PARAMETERS, v) for v in ("0.7.2", "0.12.0", "1.2.1"))]
)
def test_names_are_unique(rows):
    assert len(set(names(rows))) == len(rows)


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("0.19.0", {"min_length", "random_seed"}, {"min_tokens", "seed"}),
        ("0.20.0", {"min_tokens", "seed"}, {"min_length", "random_seed"}),
        ("0.17.0.post1", {"return_kv_cache_reuse_stats"}, {"return_perf_metrics"}),
        (None, {"min_length", "random_seed", "min_tokens", "seed"}, set()),
    ],
)
def test_renamed_inputs_follow_the_version(version, present, absent):
    declared = set(names(rows_for(INPUTS, version)))
    assert present <= declared
    assert not absent & declared


def test_rows_for_refuses_other_text():
    with pytest.raises(ValueError):
        rows_for(INPUTS, "main")
