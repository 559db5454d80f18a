"""The stand-in's sampling against the rules that the server is built by, and against numbers."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest
from tests.fakes.triton import BACKENDS

from trtllm_truss.decoding import in_runtime
from trtllm_truss.request_fields import Sampling

_spec = importlib.util.spec_from_file_location("sampling", BACKENDS / "tensorrtllm/sampling.py")
assert _spec is not None
assert _spec.loader is not None
stand_in = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stand_in)

RELEASES = [(0, 10), (0, 11), (1, 0), (1, 2)]
TEMPERATURES = (None, 0.0, 0.5, 1.0)
TOP_KS = (None, 0, 1, 40, 5000)
TOP_PS = (None, 0.0, 0.5, 1.0)


def sampler(release: tuple[int, int], **inputs: Any) -> Any:
    config = stand_in.validated(stand_in.construct(inputs, release), release)
    return stand_in.Sampler(config, normalizes=False, bias=None, bad_words=[], end_id=-1)


@pytest.mark.parametrize("release", RELEASES)
def test_both_have_one_reading_of_the_inputs(release: tuple[int, int]) -> None:
    for temperature, top_k, top_p in itertools.product(TEMPERATURES, TOP_KS, TOP_PS):
        given = {"temperature": temperature, "runtime_top_k": top_k, "runtime_top_p": top_p}
        inputs = {name: value for name, value in given.items() if value is not None}
        fields = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        found = sampler(release, **inputs)
        wanted = in_runtime(fields, zero_is_replaced=release >= (0, 11))
        assert (found.top_k == 1) is wanted.is_greedy, given
        if not wanted.is_greedy:
            choice = (found.temperature, found.top_k, found.top_p)
            assert choice == (wanted.temperature, wanted.top_k, wanted.top_p), given


@pytest.mark.parametrize(
    ("release", "inputs", "text"),
    [
        ((1, 0), {"runtime_top_k": -1}, "topK.value() >= 0"),
        ((1, 0), {"runtime_top_p": 1.5}, "topP.value() <= 1.f"),
        ((1, 0), {"temperature": -1.0}, "temperature.value() >= 0.f"),
        ((1, 0), {"repetition_penalty": 0.0}, "repetitionpenalty.value() > 0.f"),
        ((1, 0), {"min_tokens": -1}, "minTokens.value() >= 0"),
        ((1, 0), {"len_penalty": -1.0}, "lengthPenalty.value() >= 0.f"),
        ((1, 2), {"len_penalty": -1.0}, "promptIgnoreLength.value() >= 0"),
        ((1, 0), {"beam_width": 0}, "beamWidth > 0"),
    ],
)
def test_values_out_of_range(release: tuple[int, int], inputs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as refused:
        sampler(release, **inputs)
    assert str(refused.value) == text


def test_tokens_come_as_often_as_they_are_likely() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(shares)
    all_tokens, of_two, of_half = (
        sampler((1, 0), seed=3, **limits)
        for limits in ({"runtime_top_p": 1.0}, {"runtime_top_k": 2}, {"runtime_top_p": 0.75})
    )
    for source, wanted in (
        (all_tokens, shares),
        (of_two, np.array([0.625, 0.375, 0, 0])),
        (of_half, np.array([0.5, 0.25, 0, 0]) / 0.75),
    ):
        drawn = [source.choose(logits, [], [])[0] for _ in range(4000)]
        found = np.bincount(drawn, minlength=4) / len(drawn)
        assert found == pytest.approx(wanted, abs=0.03)


def test_the_figures_of_tokens() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    for normalizes, wanted in ((False, np.log(0.5)), (True, 0.0)):
        greedy = stand_in.Sampler(
            {"topK": 1}, normalizes=normalizes, bias=None, bad_words=[], end_id=-1
        )
        assert greedy.choose(logits, [], []) == (0, pytest.approx(wanted, abs=1e-6))
