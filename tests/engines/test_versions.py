"""Lookups in the table of versions and images."""

from __future__ import annotations

import pytest
import yaml
from tests.support.paths import ROOT

from trtllm_truss.engines.images import (
    IMAGES,
    PINNED_IMAGE,
    PINNED_VERSION,
    find_image,
    image_for,
    version_in,
)
from trtllm_truss.releases import holds, release

LAST_OF_ENGINES = [image.tag for image in IMAGES if image.loads_engines][-1]


def test_the_pinned_image_is_the_one_in_config_yaml() -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    assert config["base_image"]["image"] == PINNED_IMAGE.name
    assert config["base_image"]["python_executable_path"] == PINNED_IMAGE.python_executable_path
    assert config["python_version"] == f"py{PINNED_IMAGE.python.replace('.', '')}"
    assert PINNED_VERSION == "1.0.0"


def test_the_table_is_in_order_and_finds_itself() -> None:
    tags = [image.tag for image in IMAGES]
    assert tags == sorted(set(tags))
    versions = [release(image.tensorrt_llm) for image in IMAGES]
    assert versions == sorted(versions)
    for image in IMAGES:
        assert find_image(image.name) == image
        version = image.tensorrt_llm
        assert image_for(version).exact == holds("serves_engines", version)


@pytest.mark.parametrize(
    ("version", "tag", "exact"),
    [
        ("0.9.0", "24.04", True),
        ("0.17.0", "25.01", True),
        ("0.17.0.post1", "25.02", True),
        ("0.18.1", "25.03", False),
        ("0.12.0.dev2024080600", "24.08", False),
        ("1.0.0rc4", "25.10", False),
        ("1.0.3", "25.10", False),
        ("1.0.3.2510", "25.11", True),
        ("1.3.0", LAST_OF_ENGINES, False),
        ("0.4.0", "23.10", False),
        ("none", "23.10", False),
    ],
)
def test_image_for_a_version(version: str, tag: str, exact: bool) -> None:
    choice = image_for(version)
    assert (choice.image.tag, choice.exact) == (tag, exact)
    assert ("the nearest available" in str(choice)) is not exact


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3", "0.12.0"),
        ("mirror.example:5000/nvidia/tritonserver:25.02-trtllm-python-py3", "0.17.0.post1"),
        ("nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3@sha256:abc", "0.12.0"),
        ("nvcr.io/nvidia/tritonserver:24.08-py3", None),
        ("nvcr.io/nvidia/tritonserver:99.01-trtllm-python-py3", None),
        ("baseten/truss-server-base:3.11", None),
        ("", None),
    ],
)
def test_version_in_an_image(name: str, version: str | None) -> None:
    assert version_in(name) == version


def test_minimum_driver_follows_cuda() -> None:
    assert PINNED_IMAGE.minimum_driver == (525, 60, 13)
    drivers = {image.tag: image.minimum_driver for image in IMAGES}
    assert drivers["25.11"] == (580,)
    assert drivers["23.10"] is None
