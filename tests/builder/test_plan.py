"""Commands of every family and quantization equal the reviewed ones and use known options."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builder.checkpoints import H100, LLAMA_3_8B, checkpoint, settings
from tests.builder.golden_plans import GOLDEN, plan, text, variants
from tests.builder.tensorrt_llm_flags import CHOICES, FLAGS

from trtllm_builder.commands import Target, engine_command
from trtllm_builder.jobs import build_key
from trtllm_builder.plan import plan_build
from trtllm_truss.engines.model_config import parse_checkpoint
from trtllm_truss.errors import SettingsError


def options(command: tuple[str, ...]) -> dict[str, str | None]:
    """Return flags and their values."""
    following = (*command[1:], "--")
    return {
        word: None if after.startswith("--") else after
        for word, after in zip(command, following, strict=True)
        if word.startswith("--")
    }


def built(block: dict[str, Any], version: str = "1.0.0", **metadata: Any) -> dict[str, str | None]:
    """Return the options of `trtllm-build` for LLaMA-3-8B."""
    wanted, build = settings(block, **metadata)
    model = parse_checkpoint(LLAMA_3_8B)
    step = plan_build(wanted, build, model, Target(version, "H100", (9, 0))).steps[-1]
    return options(step.command)


def test_plans_are_those_that_were_reviewed() -> None:
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_every_option_exists_in_the_tools() -> None:
    checked = 0
    for family, split, block in variants():
        try:
            steps = plan(family, split, block).steps
        except SettingsError:
            continue
        for step in steps:
            tool = step.command[1] if step.command[0] == "$PYTHON" else step.command[0]
            given = options(step.command)
            assert given.keys() <= FLAGS[tool], (family, block)
            for flag, value in given.items():
                assert value in CHOICES.get(flag, {value}), (family, flag)
            checked += 1
    assert checked > 300


def test_a_plan_reads_as_a_shell_script() -> None:
    printed = str(plan("LLaMA", 2, {"quantization": {"method": "int8_weight_only"}}))
    assert printed.startswith("$PYTHON $EXAMPLES/models/core/llama/convert_checkpoint.py \\\n")
    assert (
        "\\\n    --use_weight_only \\\n    --weight_only_precision int8\n\ntrtllm-build" in printed
    )


@pytest.mark.parametrize(
    ("block", "version", "flags"),
    [
        ({"max_input_len": 100, "max_output_len": 20}, "0.9.0", {"--max_output_len": "20"}),
        ({"max_input_len": 100, "max_output_len": 20}, "1.0.0", {"--max_seq_len": "120"}),
        ({"max_input_len": 100, "max_seq_len": 120}, "0.10.0", {"--max_output_len": "20"}),
        ({"use_fused_mlp": True}, "0.12.0", {"--use_fused_mlp": None}),
        ({"use_fused_mlp": False}, "0.13.0", {"--use_fused_mlp": "disable"}),
        ({"gather_context_logits": True}, "0.19.0", {"--gather_context_logits": None}),
        ({"gather_generation_logits": True}, "1.0.0", {"--gather_generation_logits": None}),
        ({"multi_block_mode": True}, "0.11.0", {"--multi_block_mode": "enable"}),
        ({}, "0.12.0", {"--paged_kv_cache": "enable", "--tp_size": "1"}),
        ({}, "0.13.0", {"--kv_cache_type": "paged"}),
        (
            {"tokens_per_block": 32, "logits_dtype": "float16"},
            "1.2.1",
            {"--tokens_per_block": "32"},
        ),
    ],
)
def test_options_follow_the_version(
    block: dict[str, Any], version: str, flags: dict[str, str | None]
) -> None:
    given = built(block, version)
    assert flags.items() <= given.items()


@pytest.mark.parametrize("user", ["enable_chunked_context", "enable_kv_cache_reuse"])
def test_the_build_follows_what_runtime_asks_for(user: str) -> None:
    assert "--use_paged_context_fmha" not in built({})
    assert built({}, runtime={user: True})["--use_paged_context_fmha"] == "enable"
    assert "--use_paged_context_fmha" not in built({}, runtime={user: False})


def test_scripts_moved_with_0_19() -> None:
    wanted, build = settings({})
    for version, place in {"0.18.2": "llama", "0.19.0": "models/core/llama"}.items():
        step = plan_build(wanted, build, checkpoint(), Target(version)).steps[0]
        assert step.command[1] == f"$EXAMPLES/{place}/convert_checkpoint.py"


def test_smoothquant_and_awq_in_full() -> None:
    smooth = {"method": "smoothquant", "alpha": 0.55, "per_token": True, "per_channel": True}
    given = options(plan("LLaMA", 1, {"quantization": smooth}).steps[0].command)
    assert given.items() >= {
        "--smoothquant": "0.55", "--per_token": None, "--per_channel": None,
    }.items()  # fmt: skip
    awq = {"method": "awq", "format": "w4a8_awq", "calib_size": 16, "block_size": 64}
    given = options(
        plan("LLaMA", 1, {"quantization": awq, "kv_cache_dtype": "int8"}).steps[0].command
    )
    assert given.items() >= {
        "--qformat": "w4a8_awq", "--calib_size": "16", "--awq_block_size": "64",
        "--kv_cache_dtype": "int8",
    }.items()  # fmt: skip


def test_rotary_settings_change_the_checkpoints_config() -> None:
    wanted, build = settings(
        {"rotary_base": 5e5, "rotary_scaling": {"type": "linear", "factor": 2.0}}
    )
    made = plan_build(wanted, build, checkpoint(), H100)
    assert made.checkpoint_changes == {
        "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0},
    }  # fmt: skip
    assert "# config.json in $CHECKPOINT is changed: rope_theta = 500000.0" in str(made)


def test_a_float32_checkpoint_becomes_float16() -> None:
    wanted, build = settings({})
    words = engine_command(wanted, build, checkpoint(torch_dtype="float32"), (0, 9))
    assert options(words)["--gpt_attention_plugin"] == "float16"


def test_the_key_changes_with_all_that_matters_and_nothing_else() -> None:
    def key(block: dict[str, Any], commit: str = "c1", target: Target | None = H100) -> str:
        wanted, build = settings(block)
        made = plan_build(wanted, build, checkpoint(), target or H100)
        return build_key(made, commit, target)

    base = key({})
    assert key({"publish_to": "org/engine"}) == base
    assert key({"max_seq_len": 500, "max_input_len": 400}) == key(
        {"max_output_len": 100, "max_input_len": 400}
    )
    others = [
        key({"max_batch_size": 9}),
        key({"rotary_base": 2e4}),
        key({}, commit="c2"),
        key({}, target=Target("1.1.0", "H100", (9, 0))),
        key({}, target=Target("1.0.0", "A100", (8, 0))),
    ]
    assert len({base, *others}) == 6
