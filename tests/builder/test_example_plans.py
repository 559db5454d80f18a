"""The examples plan the builds of the guides."""

from __future__ import annotations

import pytest
import yaml
from tests.builder.checkpoints import CONFIGS, LLAMA_3_8B
from tests.builder.test_plan import options
from tests.support.paths import ROOT

from trtllm_builder.commands import Target
from trtllm_builder.plan import BuildPlan, plan_build
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.model_config import parse_checkpoint
from trtllm_truss.settings.loading import parse_settings

EXAMPLES = ROOT / "examples"


def planned(example: str, model: dict[str, object]) -> tuple[BuildPlan, str]:
    content = yaml.safe_load((EXAMPLES / example / "config.yaml").read_text())
    settings = parse_settings(content)
    target = Target.from_host(HostInfo.from_config(content))
    assert settings.build is not None
    settings.runtime.check_version(target.version)
    plan = plan_build(settings, settings.build, parse_checkpoint(model), target)
    return plan, target.version


def test_llama_3_8b() -> None:
    """Seed: "End to end workflow to run LLaMA", TensorRT-LLM 0.9.0."""
    plan, version = planned("llama-3-8b-build", LLAMA_3_8B)
    assert version == "0.9.0"
    convert, build = (options(step.command) for step in plan.steps)
    assert convert == {
        "--model_dir": "$CHECKPOINT", "--dtype": "float16", "--tp_size": "1", "--pp_size": "1",
        "--output_dir": "$CONVERTED",
    }  # fmt: skip
    assert plan.steps[0].command[1] == "$EXAMPLES/llama/convert_checkpoint.py"
    assert build == {
        "--checkpoint_dir": "$CONVERTED", "--gpt_attention_plugin": "float16",
        "--gemm_plugin": "float16", "--remove_input_padding": "enable",
        "--paged_kv_cache": "enable", "--tp_size": "1", "--pp_size": "1",
        "--max_batch_size": "256", "--max_input_len": "2048", "--max_output_len": "1024",
        "--max_num_tokens": "1024", "--opt_num_tokens": "1024", "--max_beam_width": "1",
        "--output_dir": "$ENGINE", "--context_fmha": "enable",
        "--use_paged_context_fmha": "enable", "--context_fmha_fp32_acc": "enable",
        "--multi_block_mode": "enable",
    }  # fmt: skip


def test_baichuan_13b_on_two_gpus() -> None:
    """Seed: "Manual compilation of models", TensorRT-LLM 0.12.0.

    The guide calls `build.py` of 0.7; the options below have replaced its
    `--use_inflight_batching`, `--use_gemm_plugin` and `--world_size` since 0.8.
    """
    plan, version = planned("baichuan-13b-tp2-build", CONFIGS["Baichuan"])
    assert version == "0.12.0"
    convert, build = (options(step.command) for step in plan.steps)
    assert plan.steps[0].command[1] == "$EXAMPLES/baichuan/convert_checkpoint.py"
    assert convert.items() >= {
        "--model_version": "v1_13b", "--dtype": "float16", "--tp_size": "2",
    }.items()  # fmt: skip
    assert build.items() >= {
        "--gemm_plugin": "float16", "--gpt_attention_plugin": "auto", "--tp_size": "2",
        "--remove_input_padding": "enable", "--paged_kv_cache": "enable",
    }.items()  # fmt: skip


@pytest.mark.filterwarnings("ignore::ImportWarning")  # of google-api-core, which Truss imports
@pytest.mark.parametrize("example", ["llama-3-8b-build", "baichuan-13b-tp2-build"])
def test_examples_are_what_truss_accepts(example: str) -> None:
    from truss.base.truss_config import TrussConfig

    TrussConfig.from_yaml(EXAMPLES / example / "config.yaml")
