"""The comparison of our model's configuration with a template of NVIDIA's form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.paths import TEMPLATES

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.errors import SettingsError
from trtllm_truss.triton.model_repository import read_config, render_repository
from trtllm_workbench.selftest.runner import PLACES, differences, find_template, read_template

OURS = Path(__file__).with_name("template.pbtxt")
"""Our configuration for 1.0, laid out as NVIDIA's template."""

PLACEHOLDERS = {
    'backend: "tensorrtllm"': 'backend: "${triton_backend}"',
    "max_batch_size: 8": "max_batch_size: ${triton_max_batch_size}",
    "decoupled: true": "decoupled: ${decoupled_mode}",
    "preferred_batch_size: [ 8 ]": "preferred_batch_size: [ ${triton_max_batch_size} ]",
    "max_queue_size: 0": "max_queue_size: ${max_queue_size}",
    'string_value: "inflight_fused_batching"': 'string_value: "${batching_strategy}"',
}
"""As in NVIDIA's template, which a script fills in."""


def template(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write our own configuration in the form of a template, with changes."""
    text = OURS.read_text()
    for old, new in (*PLACEHOLDERS.items(), *changes):
        assert old in text, old
        text = text.replace(old, new)
    text = re.sub(r'(name: "context_logits"\s+data_type: )TYPE_FP32', r"\1${logits_datatype}", text)
    assert "${logits_datatype}" in text
    file = folder / "config.pbtxt"
    file.write_text(text + '# key: "old" value: { string_value: "${old}" }\n')
    return file


def found(file: Path) -> list[str]:
    return differences(read_config(OURS), read_template(file))


def test_an_equal_template_has_no_differences(tmp_path: Path) -> None:
    assert found(template(tmp_path)) == []


def replaced(name: str, old: str, new: str) -> tuple[str, str]:
    """Return a change of one field of one tensor."""
    tensor = re.search(rf'\{{\s+name: "{name}".*?\n  \}}', OURS.read_text(), re.DOTALL)
    assert tensor is not None
    assert old in tensor[0]
    return tensor[0], tensor[0].replace(old, new)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            replaced("input_ids", "TYPE_INT32", "TYPE_INT64"),
            "input input_ids: data_type is TYPE_INT32, the template's TYPE_INT64",
        ),
        (
            replaced("end_id", "dims: [ 1 ]", "dims: [ 1, 1 ]"),
            "input end_id: dims is [1], the template's [1, 1]",
        ),
        (
            replaced("pad_id", "    reshape: { shape: [ ] }\n", ""),
            "input pad_id: reshape is [], the template's none",
        ),
        (
            replaced("input_lengths", "dims", "optional: true dims"),
            "input input_lengths: optional is False, the template's True",
        ),
        (
            replaced("stop_words_list", "    allow_ragged_batch: true\n", ""),
            "input stop_words_list: allow_ragged_batch is True, the template's False",
        ),
        (
            ('name: "seed"', 'name: "random_seed"'),
            "input random_seed: missing in ours|input seed: not in the template",
        ),
        (
            ('name: "output_ids"', 'name: "ids"'),
            "output ids: missing in ours|output output_ids: not in the template",
        ),
        (
            ('key: "gpt_model_type"', 'key: "model_type"'),
            "parameter model_type: missing in ours",
        ),
    ],
)
def test_each_difference_is_named(tmp_path: Path, change: tuple[str, str], difference: str) -> None:
    assert found(template(tmp_path, change)) == difference.split("|")


@pytest.mark.parametrize(
    ("version", "optional", "reshaped"),
    [("0.11.0", False, False), ("0.14.0", False, True), ("0.15.0", True, True), (None, True, True)],
)
def test_inputs_are_declared_as_in_the_release(
    tmp_path: Path, version: str | None, optional: bool, reshaped: bool
) -> None:
    """NVIDIA's template made `input_ids` optional in 0.15 and `stop` a scalar in 0.12."""
    folder = render_repository(
        TEMPLATES,
        tmp_path,
        ModelConfig(tmp_path, {}, inputs=(), outputs=()),
        backend="tensorrtllm",
        max_batch_size=1,
        tensorrt_llm_version=version,
    )
    inputs = {row.name: row for row in read_config(folder / "tensorrt_llm/config.pbtxt").input}
    assert inputs["input_ids"].optional is optional
    for name in ("stop", "streaming", "request_output_len"):
        assert inputs[name].HasField("reshape") is reshaped


def test_the_template_of_an_image_is_found(tmp_path: Path) -> None:
    assert find_template(tmp_path) is None
    for place in reversed(PLACES):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("")
        assert find_template(tmp_path) == tmp_path / place


def test_a_broken_template_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text("input [ {")
    with pytest.raises(SettingsError, match=r"config\.pbtxt is not a readable Triton model config"):
        read_template(tmp_path / "config.pbtxt")
