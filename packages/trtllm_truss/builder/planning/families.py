"""The supported model families, their convert scripts and the scripts' capabilities.

Sources, all in NVIDIA/TensorRT-LLM: ``examples/*/convert_checkpoint.py`` (0.9 to 0.18) and
``examples/models/{core,contrib}/*/convert_checkpoint.py`` (0.19 to 1.2) for scripts and flags,
``examples/quantization/quantize.py`` and the scripts' READMEs for quantizations. AWQ and FP8 are
offered for Qwen and the families that AWS's LMI tested them with.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.releases.versions import Release

_MOVED_IN: Release = (0, 19)
_WEIGHT_ONLY = frozenset({"int8_weight_only", "int4_weight_only"})
_SMOOTH = _WEIGHT_ONLY | {"smoothquant"}
_ALL = _SMOOTH | {"awq", "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that share a convert script.

    Attributes:
        name: for messages and tables.
        architectures: of ``config.json``.
        folder: of the script below ``examples`` up to 0.18.
        new_folder: the same from 0.19.
        since: the first supporting version.
        quantizations: supported values of ``build.quantization.method``.
        kv_cache_dtypes: supported values of ``build.kv_cache_dtype``.
        version_setting: the key under ``build`` that selects a member of the family.
        version_flag: the script's flag for that key.
        version_required: whether the checkpoint does not determine it.
        rotary_settings: supported keys under ``build`` for the rotary embedding.
        gated_mlp: whether the MLP has three matrices rather than two.
        pipeline: whether it supports pipeline parallelism.
        load_by_shard: whether the script has that flag.
    """

    name: str
    architectures: tuple[str, ...]
    folder: str
    new_folder: str
    since: Release = (0, 9)
    quantizations: frozenset[str] = _WEIGHT_ONLY
    kv_cache_dtypes: frozenset[str] = frozenset()
    version_setting: str | None = None
    version_flag: str | None = None
    version_required: bool = False
    rotary_settings: frozenset[str] = frozenset()
    gated_mlp: bool = True
    pipeline: bool = True
    load_by_shard: bool = False

    def script(self, version: Release) -> str:
        """Return the path of ``convert_checkpoint.py`` below ``examples``."""
        folder = self.folder if version < _MOVED_IN else self.new_folder
        return f"{folder}/convert_checkpoint.py"


_ROTARY = frozenset({"rotary_base", "rotary_scaling"})
_LLAMA = ("llama", "models/core/llama")

FAMILIES = (
    Family(
        name="LLaMA",
        architectures=("LlamaForCausalLM",),
        folder=_LLAMA[0],
        new_folder=_LLAMA[1],
        quantizations=_ALL,
        kv_cache_dtypes=frozenset({"int8", "fp8"}),
        rotary_settings=_ROTARY,
        load_by_shard=True,
    ),
    Family(
        name="Mistral",
        architectures=("MistralForCausalLM",),
        folder=_LLAMA[0],
        new_folder=_LLAMA[1],
        quantizations=_ALL,
        kv_cache_dtypes=frozenset({"int8", "fp8"}),
        load_by_shard=True,
    ),
    Family(
        name="Mixtral",
        architectures=("MixtralForCausalLM",),
        folder=_LLAMA[0],
        new_folder=_LLAMA[1],
        quantizations=_WEIGHT_ONLY | {"fp8"},
        kv_cache_dtypes=frozenset({"fp8"}),
        load_by_shard=True,
    ),
    Family(
        name="InternLM",
        architectures=("InternLMForCausalLM",),
        folder=_LLAMA[0],
        new_folder=_LLAMA[1],
        quantizations=_SMOOTH,
        kv_cache_dtypes=frozenset({"int8"}),
        rotary_settings=_ROTARY,
        load_by_shard=True,
    ),
    Family(
        name="InternLM2",
        architectures=("InternLM2ForCausalLM",),
        folder="internlm2",
        new_folder="models/core/internlm2",
        since=(0, 12),
        rotary_settings=_ROTARY,
    ),
    Family(
        name="Falcon",
        architectures=("FalconForCausalLM", "RWForCausalLM"),
        folder="falcon",
        new_folder="models/contrib/falcon",
        gated_mlp=False,
        load_by_shard=True,
    ),
    Family(
        name="Baichuan",
        architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
        folder="baichuan",
        new_folder="models/contrib/baichuan",
        quantizations=_SMOOTH | {"fp8"},
        kv_cache_dtypes=frozenset({"int8", "fp8"}),
        version_setting="baichuan_model_version",
        version_flag="--model_version",
        version_required=True,
    ),
    Family(
        name="ChatGLM",
        architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration", "GLMModel"),
        folder="chatglm",
        new_folder="models/core/glm-4-9b",
        quantizations=_SMOOTH,
        kv_cache_dtypes=frozenset({"int8"}),
        version_setting="chatglm_model_version",
        version_flag="--chatglm_version",
        pipeline=False,
    ),
    Family(
        name="GPT-J",
        architectures=("GPTJForCausalLM",),
        folder="gptj",
        new_folder="models/contrib/gptj",
        rotary_settings=frozenset({"rotary_dim"}),
        gated_mlp=False,
    ),
    Family(
        name="Qwen",
        architectures=(
            *("QWenLMHeadModel", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM"),
            *("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        ),
        folder="qwen",
        new_folder="models/core/qwen",
        quantizations=_ALL,
        kv_cache_dtypes=frozenset({"int8", "fp8"}),
        rotary_settings=_ROTARY,
    ),
    Family(
        name="GPT",
        architectures=(
            *("GPT2LMHeadModel", "GPT2LMHeadCustomModel", "GPTBigCodeForCausalLM"),
            *("Starcoder2ForCausalLM", "NemotronForCausalLM"),
        ),
        folder="gpt",
        new_folder="models/core/gpt",
        quantizations=_SMOOTH | {"fp8"},
        kv_cache_dtypes=frozenset({"int8", "fp8"}),
        version_setting="gpt_model_version",
        version_flag="--gpt_variant",
        gated_mlp=False,
    ),
)
"""Every family; an architecture is in at most one of them."""


def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture; None if it is not supported."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)
