"""The rendered models, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import TEMPLATES

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.preparation import render_engine
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.triton.model_repository import InstanceCounts, read_config, render_native_models

FOUR = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm_bls"]
VERSIONS = ["0.9.0", "0.12.0", "0.18.2", "1.0.0", None]


def render(folder: Path, version: str | None = "1.0.0", **options: Any):
    render_native_models(
        TEMPLATES,
        folder,
        tokenizer_dir=Path('/tokenizer "ü"'),
        max_batch_size=16,
        counts=InstanceCounts(preprocessing=2, postprocessing=3, bls=4),
        tensorrt_llm_version=version,
        **options,
    )
    return {name: read_config(folder / name / "config.pbtxt") for name in FOUR}


def test_what_rendering_sets(tmp_path):
    configs = render(tmp_path)
    for name, count in zip(FOUR[1:], (3, 2, 4), strict=True):
        config = configs[name]
        assert config.instance_group[0].count == count
        assert config.parameters["tokenizer_dir"].string_value == '/tokenizer "ü"'
        assert [path.name for path in (tmp_path / name / "1").iterdir()] == ["model.py"]
    assert {config.max_batch_size for config in configs.values()} == {16}
    assert list((tmp_path / "ensemble" / "1").iterdir()) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_names_follow_the_version(tmp_path, version):
    bls, ensemble = (render(tmp_path, version)[name] for name in ("tensorrt_llm_bls", "ensemble"))
    assert list(bls.input) == list(ensemble.input)
    assert list(bls.output) == list(ensemble.output)
    (step,) = ensemble.ensemble_scheduling.step
    assert dict(step.input_map) == {field.name: field.name for field in bls.input}
    assert dict(step.output_map) == {field.name: field.name for field in bls.output}
    names = {field.name for field in bls.input}
    is_new = version in ("1.0.0", None)
    is_old = version != "1.0.0"
    assert ({"min_tokens", "seed"} <= names) == is_new
    assert ({"min_length", "random_seed"} <= names) == is_old
    assert ("lora_task_id" in names) == (version != "0.8.0")
    assert ("acceptance_rate" in {field.name for field in bls.output}) == is_new


def test_errors_about_inputs_that_the_engine_would_misread(tmp_path):
    said = {"length_penalty": 'would become "another"'}
    config = render(tmp_path, refused=said)["tensorrt_llm_bls"]
    assert json.loads(config.parameters["refused_fields"].string_value) == said
    assert "refused_fields" not in render(tmp_path)["ensemble"].parameters


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_transaction_policy_is_that_of_the_text_models(tmp_path, decoupled):
    configs = render(tmp_path, decoupled=decoupled)
    for name in ("ensemble", "tensorrt_llm_bls"):
        assert configs[name].model_transaction_policy.decoupled == decoupled


def test_old_images_cannot_do_without_decoupled(tmp_path):
    with pytest.raises(SettingsError, match=r"triton_decoupled_mode is false, .* is 0\.9\.0"):
        render(tmp_path, "0.9.0", decoupled=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wanted", [False, True])
def test_off_unless_asked_for(tmp_path, wanted):
    from tests.fakes.triton import write_engine

    folder = write_engine(tmp_path / "engine")
    metadata = {"engine_repository": str(folder), "serving": {"triton_native": wanted}}
    settings = parse_settings({"model_metadata": metadata})
    engine, out = inspect_engine(folder), tmp_path / "out"
    tokenizer = engine.tokenizer_folder
    render_engine(settings, engine, TEMPLATES.parent, out, PINNED_VERSION, tokenizer, {})
    rendered = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert rendered == sorted(["tensorrt_llm", *(FOUR if wanted else [])])
