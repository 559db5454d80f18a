"""Write one adapter of each form with the installed PEFT, from tiny models with random weights.

The folders beside this script are what it wrote with four releases of PEFT; README.md names them.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

_SIZES = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 6}
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

Form = Callable[[], tuple[Any, dict[str, Any]]]


def _llama(**changes: Any) -> Any:
    config = transformers.LlamaConfig(**{**_SIZES, **changes})
    return transformers.LlamaForCausalLM(config)


def _qwen2() -> Any:  # its q, k and v have biases
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_SIZES))


def _phi3() -> Any:
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**_SIZES))


def _qwen3_moe() -> Any:
    config = transformers.Qwen3MoeConfig(**_SIZES, head_dim=2, **_EXPERTS)
    return transformers.Qwen3MoeForCausalLM(config)


def _gpt_oss() -> Any:
    config = transformers.GptOssConfig(
        **_SIZES, head_dim=2, num_local_experts=2, num_experts_per_tok=1
    )
    return transformers.GptOssForCausalLM(config)


FORMS: dict[str, Form] = {
    "names": lambda: (_llama(), {"target_modules": ["q_proj", "v_proj"]}),
    "all-linear": lambda: (_llama(), {"target_modules": "all-linear"}),
    "pattern": lambda: (_llama(), {"target_modules": r".*self_attn\.(q|v)_proj"}),
    "layers": lambda: (
        _llama(num_hidden_layers=2),
        {"target_modules": _ATTENTION, "layers_to_transform": [1]},
    ),
    "rank-stabilized": lambda: (_llama(), {"target_modules": ["o_proj"], "use_rslora": True}),
    "rank-pattern": lambda: (
        _llama(),
        {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 4}},
    ),
    "alpha-pattern": lambda: (
        _llama(),
        {"target_modules": ["q_proj", "v_proj"], "alpha_pattern": {"v_proj": 32}},
    ),
    "bias-lora-only": lambda: (
        _qwen2(),
        {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"},
    ),
    "bias-all": lambda: (_qwen2(), {"target_modules": ["q_proj", "v_proj"], "bias": "all"}),
    "bias-of-none": lambda: (_llama(), {"target_modules": ["q_proj"], "bias": "all"}),
    "lora-bias": lambda: (_llama(), {"target_modules": ["q_proj"], "lora_bias": True}),
    "dora": lambda: (_llama(), {"target_modules": ["q_proj"], "use_dora": True}),
    "modules-to-save": lambda: (
        _llama(),
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "head": lambda: (_llama(), {"target_modules": ["q_proj", "lm_head"]}),
    "embedding": lambda: (_llama(), {"target_modules": ["q_proj", "embed_tokens"]}),
    "trained-tokens": lambda: (
        _llama(),
        {"target_modules": ["q_proj"], "trainable_token_indices": [3, 4]},
    ),
    "target-parameters": lambda: (
        _gpt_oss(),
        {
            "target_modules": _ATTENTION,
            "target_parameters": ["0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"],
        },
    ),
    "fused": lambda: (_phi3(), {"target_modules": "all-linear"}),
    "experts": lambda: (
        _qwen3_moe(),
        {"target_modules": [*_ATTENTION, "gate_proj", "up_proj", "down_proj"]},
    ),
    "experts-of-none": lambda: (_qwen3_moe(), {"target_modules": _ATTENTION}),
    "replicated-layers": lambda: (
        _llama(num_hidden_layers=2),
        {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 2]]},
    ),
    "activated": lambda: (_llama(), {"target_modules": ["q_proj"], "alora_invocation_tokens": [5]}),
    "pooled": lambda: (
        _llama(),
        {"target_modules": ["q_proj"], "use_qalora": True, "qalora_group_size": 2},
    ),
}


def write(folder: Path) -> Iterator[str]:
    """Write the adapters; yield what became of each form."""
    known = inspect.signature(peft.LoraConfig).parameters
    for name, form in FORMS.items():
        torch.manual_seed(1)
        try:
            model, given = form()
        except AttributeError as error:  # a model that this transformers lacks
            yield f"{name}: left out ({error})"
            continue
        if unknown := given.keys() - known:
            yield f"{name}: left out (PEFT {peft.__version__} has no {', '.join(unknown)})"
            continue
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", r=2, lora_alpha=8, init_lora_weights=False, **given
        )
        try:
            adapted = peft.get_peft_model(model, config)
        except (ValueError, ImportError, AttributeError) as error:
            yield f"{name}: left out ({error})"
            continue
        adapted.save_pretrained(folder / name, save_embedding_layers=False)
        (folder / name / "README.md").unlink(missing_ok=True)
        yield f"{name}: {sum(file.stat().st_size for file in (folder / name).iterdir())} bytes"


if __name__ == "__main__":
    destination = Path(sys.argv[1]) / ".".join(peft.__version__.split(".")[:2])
    shutil.rmtree(destination, ignore_errors=True)
    sys.stdout.writelines(f"{line}\n" for line in write(destination))
    sys.stdout.write(f"PEFT {peft.__version__}, transformers {transformers.__version__}\n")
