"""Accelerators by their names in config.yaml."""

from __future__ import annotations

import pytest

from trtllm_truss.engines.gpus import ACCELERATORS, Gpu, parse_accelerator


@pytest.mark.parametrize(
    ("spec", "name", "count"), [("H100", "H100", 1), ("H100:8", "H100", 8), (" L4:2 ", "L4", 2)]
)
def test_accelerators_are_read(spec: str, name: str, count: int) -> None:
    request = parse_accelerator(spec)
    assert request is not None
    assert (request.name, request.count) == (name, count)
    assert request.accelerator is ACCELERATORS[name]


@pytest.mark.parametrize("spec", ["", ":2", "H100:0", "H100:x", "H100:2:3", "H 100"])
def test_accelerators_that_truss_refuses(spec: str) -> None:
    assert parse_accelerator(spec) is None


@pytest.mark.parametrize(
    ("name", "gpu", "same"),
    [
        ("L4", "NVIDIA L4", True),
        ("L4", "NVIDIA L40S", False),
        ("A10G", "NVIDIA A10G", True),
        ("A100_40GB", "NVIDIA A100-SXM4-40GB", True),
        ("B300", "NVIDIA GB300", False),
        ("RTX_PRO_6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
    ],
)
def test_accelerators_are_recognised_by_name(name: str, gpu: str, same: bool) -> None:
    assert ACCELERATORS[name].matches(Gpu(gpu, 1, 1, (9, 0), "1")) is same
