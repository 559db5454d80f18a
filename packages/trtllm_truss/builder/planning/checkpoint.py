"""Parse a Hugging Face checkpoint's ``config.json``.

Families name the same number differently: GPT-2, GPT-J and Falcon have ``n_layer`` where others
have ``num_hidden_layers``, ChatGLM has ``num_layers``. Source: the ``configuration_*.py`` of each
architecture in huggingface/transformers, and in checkpoints with custom code.
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
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The properties of a model that a build depends on.

    Attributes:
        architecture: the first of ``architectures``, such as ``LlamaForCausalLM``.
        layers: decoder layers.
        hidden_size: width of the hidden state.
        heads: attention heads.
        kv_heads: key/value heads; fewer than `heads` with grouped or multi-query attention.
        head_size: width of one head.
        inner_size: width of the MLP.
        vocab_size: tokens, padding included.
        positions: maximum context in tokens; None if not given.
        dtype: of the weights: float16, bfloat16 or float32.
        experts: experts per layer; 1 for a dense model.
        tied_embeddings: whether input embeddings and logits share one table.
        rope_scaling: the kind of rotary scaling, if any.
        quantized_by: the quantization method of the weights, if any.
        has_code: whether loading it runs custom Python code of the repository.
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
    """Convert the content of ``config.json``.

    Raises:
        ArtifactError: it does not describe a language model, or a required value is missing.
    """
    if not isinstance(config, Mapping):
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint is not a JSON object; fetch it again."
        )
    names = config.get("architectures")
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise ArtifactError(
            f"{CONFIG_FILE} names no architectures, so it is not from a Hugging Face checkpoint. "
            "Name the repository of the model's weights in build.checkpoint_repository."
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
    """Return Falcon's and StarCoder's `multi_query`, which Falcon's new decoder ignores."""
    return config.get("multi_query") is True and config.get("new_decoder_architecture") is not True


def _kind(section: object, *names: str) -> str | None:
    if not isinstance(section, Mapping):
        return None
    kind = str(next((section[name] for name in names if section.get(name)), "unnamed"))
    return None if kind == "default" else kind


def _whole(config: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    """Return the first present field as a positive integer."""
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if default is None:
            raise ArtifactError(
                f"{CONFIG_FILE} of the checkpoint has no {names[0]}; it is not that of a "
                "supported language model."
            )
        return default
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_INT:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: {name} is {value!r}; it must be an integer "
            "above 0. Fetch the file again."
        )
    return value
