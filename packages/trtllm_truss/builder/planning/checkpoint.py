"""What a Hugging Face checkpoint's ``config.json`` says of the model.

Families name the same number differently: GPT-2, GPT-J and Falcon have ``n_layer`` where others
have ``num_hidden_layers``, ChatGLM has ``num_layers``. Source: the ``configuration_*.py`` of each
architecture in huggingface/transformers, and in the checkpoints that bring their own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import ArtifactError

CONFIG_FILE = "config.json"

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd")
_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_INNER = ("intermediate_size", "n_inner", "ffn_hidden_size", "inner_hidden_size")
_POSITIONS = ("max_position_embeddings", "model_max_length", "seq_length", "n_positions")
_VOCABULARY = ("padded_vocab_size", "vocab_size")
_EXPERTS = ("num_local_experts", "num_experts")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model, as far as a build depends on it.

    Attributes:
        architecture: the first of ``architectures``, such as ``LlamaForCausalLM``.
        layers: of the decoder.
        hidden_size: numbers that stand for one token between layers.
        heads: attention heads.
        kv_heads: key/value heads; fewer than `heads` with grouped or multi-query attention.
        head_size: numbers in one head.
        inner_size: of the MLP.
        vocab_size: tokens, padding included.
        positions: the context that the model was made for, in tokens; None if it does not say.
        dtype: of the weights: float16, bfloat16 or float32.
        experts: MLPs of one layer; 1 without experts.
        tied_embeddings: whether one table embeds tokens and makes logits.
        rope_scaling: the kind of rotary scaling, if there is any.
        quantized_by: the method that has quantized the weights already, if one has.
        has_code: whether it brings Python code of its own, which loading it would run.
    """

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    inner_size: int
    vocab_size: int
    positions: int | None
    dtype: str
    experts: int = 1
    tied_embeddings: bool = False
    rope_scaling: str | None = None
    quantized_by: str | None = None
    has_code: bool = False


def parse_checkpoint(config: object) -> Checkpoint:
    """Reads a parsed ``config.json``.

    Raises:
        ArtifactError: it describes no language model, or a value that a build needs is missing.
    """
    if not isinstance(config, Mapping):
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint is not a JSON object; fetch it again."
        )
    names = config.get("architectures")
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise ArtifactError(
            f"{CONFIG_FILE} names no architectures: it is no Hugging Face checkpoint's. Name the "
            " repository of the model's weights in build.checkpoint_repository."
        )
    hidden, heads = _whole(config, _HIDDEN), _whole(config, _HEADS)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    quantization = config.get("quantization_config")
    return Checkpoint(
        architecture=names[0],
        layers=_whole(config, _LAYERS),
        hidden_size=hidden,
        heads=heads,
        kv_heads=1 if _is_multi_query(config) else _whole(config, _KV_HEADS, heads),
        head_size=_whole(config, ("head_dim", "kv_channels"), max(1, hidden // heads)),
        inner_size=_whole(config, _INNER, 4 * hidden),
        vocab_size=_whole(config, _VOCABULARY),
        positions=_whole(config, _POSITIONS, 0) or None,
        dtype=str(config.get("torch_dtype") or config.get("dtype") or "float16"),
        experts=_whole(config, _EXPERTS, 1),
        tied_embeddings=config.get("tie_word_embeddings") is True,
        rope_scaling=_kind(scaling, "rope_type", "type"),
        quantized_by=_kind(quantization, "quant_method"),
        has_code=bool(config.get("auto_map")),
    )


def _is_multi_query(config: Mapping[str, Any]) -> bool:
    """Falcon's and StarCoder's way to say "one key/value head"; Falcon's new decoder ignores it."""
    return config.get("multi_query") is True and config.get("new_decoder_architecture") is not True


def _kind(section: object, *names: str) -> str | None:
    if not isinstance(section, Mapping):
        return None
    kind = str(next((section[name] for name in names if section.get(name)), "unnamed"))
    return None if kind == "default" else kind


def _whole(config: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    """The first of some fields that is there."""
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if default is None:
            raise ArtifactError(
                f"{CONFIG_FILE} of the checkpoint has no {names[0]}; it is not one of a language "
                "model that can be built."
            )
        return default
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: {name} is {value!r}; it must be a whole number "
            "above 0. Fetch the file again."
        )
    return value
