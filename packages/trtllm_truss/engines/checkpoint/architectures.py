"""Architectures that the LLM API's PyTorch backend loads, by TensorRT-LLM release, as data.

A checkpoint's is the first of ``architectures`` in its ``config.json``. TensorRT-LLM refuses an
unknown one itself ("Unknown architecture for AutoModelForCausalLM"), but only in the container and
with the weights on disk.

Sources in NVIDIA/TensorRT-LLM: the registered model classes, ``tensorrt_llm/_torch/models`` (read
at 1.0.0rc4 and, as ``_arch_index.py``, late in 2026), ``docs/source/models/supported-models.md``
(as published for 1.2.1, too) and the release notes of 1.0, 1.1 and 1.2. "From 1.3" means its
pre-releases.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.releases.versions import Release

COMPLETE_BEFORE: Release = (1, 4)
"""The first release with architectures that the table may lack."""

_BLACKWELL: ComputeCapability = (10, 0)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Attributes:
        since: the first release that loads it.
        minimum_capability: of the GPU; None for any that TensorRT-LLM runs on.
    """

    since: Release
    minimum_capability: ComputeCapability | None = None


_SINCE: dict[Release, tuple[str, ...]] = {
    (1, 0): (
        *("LlamaForCausalLM", "Llama4ForConditionalGeneration", "MllamaForConditionalGeneration"),
        *("MistralForCausalLM", "Mistral3ForConditionalGeneration", "MixtralForCausalLM"),
        *("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        *("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        *("Phi3ForCausalLM", "Phi4MMForCausalLM", "DeepseekV3ForCausalLM", "Exaone4ForCausalLM"),
        *("NemotronForCausalLM", "NemotronHForCausalLM", "NemotronNASForCausalLM"),
        *("DeciLMForCausalLM", "HCXVisionForCausalLM", "LlavaLlamaModel"),
        "LlavaNextForConditionalGeneration",
    ),
    (1, 1): (
        *("GptOssForCausalLM", "SeedOssForCausalLM"),
        *("HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"),
    ),
    (1, 2): (
        *("Qwen3NextForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM"),
        *("ExaoneMoEForCausalLM", "Starcoder2ForCausalLM", "MistralLarge3ForCausalLM"),
        *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        *("NemotronH_Nano_VL_V2", "MiniMaxM2ForCausalLM"),
    ),
    (1, 3): (
        *("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
        *("Qwen3_5MoeForConditionalGeneration", "GlmMoeDsaForCausalLM", "Gemma4ForCausalLM"),
        *("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
        *("KimiK25ForConditionalGeneration", "KimiLinearForCausalLM"),
        *("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
        "Step3p5ForCausalLM",
        *("Step3p7ForConditionalGeneration", "Cohere2ForCausalLM", "LagunaForCausalLM"),
        *("InklingForConditionalGeneration", "AfmoeForCausalLM"),
        *("Exaone4_5_ForConditionalGeneration", "NemotronHPuzzleForCausalLM"),
        *("NemotronH_Nano_Omni_Reasoning_V3", "MiniCPMV4_6ForConditionalGeneration"),
    ),
}

ARCHITECTURES: dict[str, Architecture] = {
    **{name: Architecture(since) for since, names in _SINCE.items() for name in names},
    "DeepseekV4ForCausalLM": Architecture((1, 3), _BLACKWELL),
}

OTHER_BACKENDS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("DeepseekV2ForCausalLM", "ExaoneForCausalLM", "Glm4MoeLiteForCausalLM"),
            *("GraniteForCausalLM", "GraniteMoeHybridForCausalLM", "InternLM3ForCausalLM"),
            *("Olmo3ForCausalLM", "OpenELMForCausalLM", "SmolLM3ForCausalLM"),
            *("SkyworkR1VChatModel", "Gemma3nForConditionalGeneration"),
        ),
        "only TensorRT-LLM's AutoDeploy backend loads it, which is not served",
    ),
    **dict.fromkeys(
        (
            *("BartForConditionalGeneration", "MBartForConditionalGeneration"),
            *("T5ForConditionalGeneration", "WhisperForConditionalGeneration"),
        ),
        "encoder-decoder models are not served",
    ),
    **dict.fromkeys(
        (
            *("BertForSequenceClassification", "Qwen2ForProcessRewardModel"),
            *("Qwen2ForRewardModel", "Qwen3ForTextEmbedding", "CLIPVisionModel"),
            "SiglipVisionModel",
        ),
        "it generates no text",
    ),
}
"""Architectures that TensorRT-LLM knows but this project does not serve, and why."""
