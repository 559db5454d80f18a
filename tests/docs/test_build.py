"""docs/build.md, against the code and against the guides that users come from."""

from __future__ import annotations

import pytest
from tests.support.paths import ROOT
from tools.docs.lmi_options import LMI_OPTIONS

from trtllm_builder.commands import BUILD_FLAGS
from trtllm_truss.settings.build import METHOD_SECTIONS, Build, RotaryScaling
from trtllm_truss.settings.model import Settings

PAGE = ROOT / "docs/build.md"

# Every `option.*` in LMI's TensorRT-LLM guides of 0.26 and 0.27, their tutorial on manual
# compilation included.
GUIDES = [
    *("awq_calib_size", "awq_format", "baichuan_model_version"),
    *("batch_scheduler_policy", "chatglm_model_version", "dtype"),
    *("enable_kv_cache_reuse", "enable_trt_overlap", "gpt_model_version"),
    *("kv_cache_free_gpu_mem_fraction", "max_input_len", "max_num_sequences"),
    *("max_output_len", "max_rolling_batch_size", "model_id", "mpi_mode"),
    *("multi_block_mode", "multi_query_mode", "quantize", "rolling_batch"),
    *("rotary_base", "rotary_dim", "rotary_scaling_factor", "rotary_scaling_type"),
    *("smoothquant_alpha", "smoothquant_per_channel", "smoothquant_per_token"),
    *("tensor_parallel_degree", "tokens_per_block", "use_custom_all_reduce"),
    "use_fused_mlp",
]


@pytest.mark.parametrize("option", GUIDES)
def test_every_option_of_the_guides_is_listed(option: str) -> None:
    assert option in LMI_OPTIONS
    assert f"| `option.{option}` |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", sorted(LMI_OPTIONS))
def test_options_become_settings_that_exist(option: str) -> None:
    setting = LMI_OPTIONS[option].setting
    if setting is None or setting.startswith("runtime."):
        return
    section, _, key = setting.rpartition(".")
    known = {
        "": [Settings],
        "build": [Build],
        "build.rotary_scaling": [RotaryScaling],
        "build.quantization": METHOD_SECTIONS.values(),
    }[section]
    assert any(key in model.model_fields for model in known)


def test_every_flag_belongs_to_a_setting() -> None:
    assert {row.setting for row in BUILD_FLAGS} <= Build.model_fields.keys()
