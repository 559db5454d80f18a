"""Parse a Hugging Face checkpoint's ``config.json``.

Families use different names for the same number: GPT-2, GPT-J and Falcon have ``n_layer`` where
others have ``num_hidden_layers``, ChatGLM has ``num_layers``; models with a vision part keep the
language model's in ``text_config``. Source: the ``configuration_*.py`` of each architecture in
huggingface/transformers, and in checkpoints with custom code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.engines.engine_files import CONFIG_FILE, MAX_LAYERS, MAX_VOCABULARY
from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import INT32_MAX
from trtllm_truss.validation import shown

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd")
_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_INNER = ("intermediate_size", "n_inner", "ffn_hidden_size", "inner_hidden_size")
_POSITIONS = ("max_position_embeddings", "model_max_length", "seq_length", "n_positions")
_VOCABULARY = ("padded_vocab_size", "vocab_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NESTED = ("text_config", "llm_config", "language_config")
_LEFT_OUT: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}
"""Fields that checkpoints of a ``model_type`` leave to transformers' defaults."""

_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_HYBRID_ATTENTION = "*"  # of ``hybrid_override_pattern``: M is Mamba, - and E are an MLP
_MAX_NAME = 128
_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The properties of a model that a build depends on.

    Attributes:
        architecture: the first of ``architectures``, such as ``LlamaForCausalLM``.
        hidden_size: width of the hidden state.
        kv_heads: key/value heads; fewer than `heads` with grouped or multi-query attention.
        inner_size: width of the MLP.
        vocab_size: tokens, padding included.
        positions: maximum context in tokens; None if not given.
        dtype: type of the weights: float16, bfloat16 or float32.
        experts: experts per layer; 1 for a dense model.
        tied_embeddings: input embeddings and logits share one table.
        rope_scaling: the kind of rotary scaling, if any.
        quantized_by: quantization method of the weights, if any.
        has_code: loading it runs custom Python code of the repository.
        model_type: transformers' name of the configuration.
        quantization: ``quantization_config``, empty without one.
        cache_heads: key/value heads by layer, 0 for a layer without attention.
        recurrent: some layers have a state instead of a KV cache.
        latent_size: numbers that latent attention (MLA) caches per token and layer instead of keys
            and values; None for other models.
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
    model_type: str = ""
    quantization: Mapping[str, Any] = field(default_factory=dict)
    cache_heads: tuple[int, ...] = ()
    recurrent: bool = False
    latent_size: int | None = None


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
    if names is None and {"architecture", "mapping"} <= config.keys():
        raise ArtifactError(
            f"{CONFIG_FILE} is that of a TensorRT-LLM checkpoint (convert_checkpoint.py); run "
            "trtllm-build on it and name the engine, or name the Hugging Face checkpoint."
        )
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise ArtifactError(
            f"{CONFIG_FILE} names no architectures, so it is not from a Hugging Face checkpoint. "
            "Name the repository of the model's weights."
        )
    if len(names[0]) > _MAX_NAME:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: architectures[0] is {shown(names[0])}; it must have "
            f"at most {_MAX_NAME} characters. Fetch the file again."
        )
    has_code = bool(config.get("auto_map"))
    config = _of_language_model(config)
    quantization = config.get("quantization_config")
    hidden, heads = _whole(config, _HIDDEN), _whole(config, _HEADS)
    layers = _layers(config)
    kv_heads = 1 if _is_multi_query(config) else _whole(config, _KV_HEADS, heads)
    cache_heads = _cache_heads(config, layers, heads, kv_heads)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    return Checkpoint(
        architecture=names[0],
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=_whole(config, ("head_dim", "kv_channels"), max(1, hidden // heads)),
        inner_size=_whole(config, _INNER, 4 * hidden),
        vocab_size=_whole(config, _VOCABULARY, most=MAX_VOCABULARY),
        positions=_whole(config, _POSITIONS, 0) or None,
        dtype=_dtype(config),
        experts=_whole(config, _EXPERTS, 1),
        tied_embeddings=config.get("tie_word_embeddings") is True,
        rope_scaling=_kind(scaling, "rope_type", "type"),
        quantized_by=_kind(quantization, "quant_method"),
        has_code=has_code,
        model_type=_text(config.get("model_type")),
        quantization=quantization if isinstance(quantization, Mapping) else {},
        cache_heads=cache_heads,
        recurrent=0 in cache_heads and config.get("block_configs") is None,
        latent_size=_latent_size(config),
    )


def _of_language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all fields of the language model, including nested ones and known defaults."""
    sections = [config[name] for name in _NESTED if isinstance(config.get(name), Mapping)]
    nested = sections[0] if sections else {}
    inner = {name: value for name, value in nested.items() if value is not None}
    merged = {**config, **inner}
    return {**_LEFT_OUT.get(str(merged.get("model_type")), {}), **merged}


def _layers(config: Mapping[str, Any]) -> int:
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        return _whole(config, _LAYERS, most=MAX_LAYERS)
    if len(pattern) > MAX_LAYERS:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: hybrid_override_pattern has {len(pattern)} layers; "
            f"it must have at most {MAX_LAYERS}. Fetch the file again."
        )
    return len(pattern)


def _dtype(config: Mapping[str, Any]) -> str:
    value = config.get("torch_dtype") or config.get("dtype") or _DTYPES[0]
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name not in _DTYPES:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: torch_dtype is {shown(value)}; it must be one of "
            f"{', '.join(_DTYPES)}. Name a checkpoint of one of these types."
        )
    return str(name)


def _cache_heads(
    config: Mapping[str, Any], layers: int, heads: int, kv_heads: int
) -> tuple[int, ...]:
    """Return the key/value heads by layer, of uniform and of hybrid models.

    Source of the fields: Nemotron-H, Nemotron-NAS, Qwen3-Next and ``layer_types`` of transformers.
    """
    pattern, kinds = config.get("hybrid_override_pattern"), config.get("layer_types")
    blocks, interval = config.get("block_configs"), config.get("full_attention_interval")
    if isinstance(pattern, str) and pattern:
        return tuple(kv_heads if kind == _HYBRID_ATTENTION else 0 for kind in pattern)
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(kv_heads if kind in _ATTENTION else 0 for kind in kinds)
    if isinstance(blocks, list) and len(blocks) == layers:
        return tuple(_block_heads(block, heads) for block in blocks)
    if isinstance(interval, int) and interval > 0:
        return tuple(0 if (layer + 1) % interval else kv_heads for layer in range(layers))
    return (kv_heads,) * layers


def _block_heads(block: object, heads: int) -> int:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    group = attention.get("n_heads_in_group") if isinstance(attention, Mapping) else None
    return heads // group if isinstance(group, int) and group > 0 else 0


def _latent_size(config: Mapping[str, Any]) -> int | None:
    if config.get("kv_lora_rank") is None:
        return None
    return _whole(config, ("kv_lora_rank",)) + _whole(config, ("qk_rope_head_dim",))


def _is_multi_query(config: Mapping[str, Any]) -> bool:
    """Return `multi_query` of Falcon and StarCoder, which Falcon's new decoder ignores."""
    return config.get("multi_query") is True and config.get("new_decoder_architecture") is not True


def _kind(section: object, *names: str) -> str | None:
    if not isinstance(section, Mapping):
        return None
    kind = _text(next((section[name] for name in names if section.get(name)), None)) or "unnamed"
    return None if kind == "default" else kind


def _text(value: object) -> str:
    """Return the start of a text, for messages; empty for other types."""
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def _whole(
    config: Mapping[str, Any],
    names: tuple[str, ...],
    default: int | None = None,
    most: int = INT32_MAX,
) -> int:
    """Return the first field that is present, as a positive integer."""
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if default is None:
            raise ArtifactError(
                f"{CONFIG_FILE} of the checkpoint has no {names[0]}; it is not that of a "
                "supported language model."
            )
        return default
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: {name} is {shown(value)}; it must be an integer "
            f"from 1 to {most}. Fetch the file again."
        )
    return value
