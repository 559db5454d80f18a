"""Parse a Hugging Face checkpoint's ``config.json``, and keep its code from being run; adapters.

Families name the same number differently: GPT-2, GPT-J and Falcon have ``n_layer`` where others
have ``num_hidden_layers``, ChatGLM has ``num_layers``; models with a vision part keep the language
model's in ``text_config``. Source: the ``configuration_*.py`` of each architecture in
huggingface/transformers, and in checkpoints with custom code. GPUs have different number formats of
weights, activations and KV cache.

Libraries would run a folder's code unasked. TensorRT-LLM passes ``trust_remote_code=True`` to
transformers whatever its own argument says (1.0 to 1.2: ``_torch/pyexecutor/model_loader.py`` and
``inputs/registry.py``), and so do NVIDIA's scripts that convert checkpoints. transformers then runs
the Python files of the folder, or those of any repository that ``auto_map`` names, and PyTorch
unpickles ``.bin`` files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.listing import Source
from trtllm_truss.engines.engine_files import CONFIG_FILE, MAX_LAYERS, MAX_VOCABULARY
from trtllm_truss.engines.host import ComputeCapability
from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import INT32_MAX, parse_json
from trtllm_truss.releases import read_table
from trtllm_truss.validation import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that not all GPUs have; `releases/number_formats.toml` explains the columns."""

    name: str
    minimum_capability: ComputeCapability
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownQuantization:
    """A type or quantization by TensorRT-LLM's name; the same file explains the columns."""

    name: str
    format: str = ""
    cache_bits: float = 0
    source: str


MINIMUM_CAPABILITY = {
    row.name: row.minimum_capability for row in read_table("number_formats", "formats", Format)
}
"""The first compute capability with a format; formats of all GPUs are left out."""

QUANTIZATIONS = {
    row.name: row for row in read_table("number_formats", "quantizations", KnownQuantization)
}
_UNKNOWN_BITS = 16


@dataclass(frozen=True, slots=True)
class Quantization:
    """Number formats of weights, activations and KV cache.

    Attributes:
        dtype: type of unquantized weights and activations, such as ``float16``.
        algorithm: TensorRT-LLM's name of the weights' quantization, such as ``W4A16_AWQ``; None
            without one. The old schema has only bit flags and yields ``FP8``, ``INT8`` or ``INT4``.
        kv_cache: ``INT8``, ``FP8`` or ``NVFP4``; None for a cache of `dtype`.
    """

    dtype: str
    algorithm: str | None = None
    kv_cache: str | None = None


def number_formats(quantization: Quantization) -> tuple[str, ...]:
    """Return the keys of `MINIMUM_CAPABILITY` for an engine, each once."""
    names = (quantization.dtype, quantization.algorithm or "", quantization.kv_cache or "")
    formats = (QUANTIZATIONS[name].format for name in names if name in QUANTIZATIONS)
    return tuple(dict.fromkeys(filter(None, formats)))


def bits(dtype: str) -> float:
    """Return the bits of a number of a type; 16 for an unknown one."""
    known = QUANTIZATIONS.get(dtype)
    return known.cache_bits if known is not None and known.cache_bits else _UNKNOWN_BITS


def cache_bits(kv_cache: str | None, dtype: str) -> float:
    """Return the bits of a number in a KV cache, which is of `dtype` unless it is quantized."""
    known = QUANTIZATIONS.get(kv_cache or "")
    return known.cache_bits if known is not None and known.cache_bits else bits(dtype)


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
"""Fields by ``model_type`` that checkpoints leave to transformers' defaults."""

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
        dtype: of the weights: float16, bfloat16 or float32.
        experts: experts per layer; 1 for a dense model.
        tied_embeddings: whether input embeddings and logits share one table.
        rope_scaling: the kind of rotary scaling, if any.
        quantized_by: the quantization method of the weights, if any.
        has_code: whether loading it runs custom Python code of the repository.
        model_type: transformers' name of the configuration.
        quantization: ``quantization_config``, empty without one.
        cache_heads: key/value heads by layer, 0 for a layer without attention.
        recurrent: some layers have a state instead of a KV cache.
        latent_size: numbers that latent attention (MLA) caches per token and layer instead of keys
            and values; None without it.
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
    """Return all fields of the language model, nested ones and known defaults included."""
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
    """Return the key/value heads by layer of uniform and of hybrid models.

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
    """Return Falcon's and StarCoder's `multi_query`, which Falcon's new decoder ignores."""
    return config.get("multi_query") is True and config.get("new_decoder_architecture") is not True


def _kind(section: object, *names: str) -> str | None:
    if not isinstance(section, Mapping):
        return None
    kind = _text(next((section[name] for name in names if section.get(name)), None)) or "unnamed"
    return None if kind == "default" else kind


def _text(value: object) -> str:
    """Return the beginning of a text, for messages; anything else is empty."""
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def _whole(
    config: Mapping[str, Any],
    names: tuple[str, ...],
    default: int | None = None,
    most: int = INT32_MAX,
) -> int:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint: {name} is {shown(value)}; it must be an integer "
            f"from 1 to {most}. Fetch the file again."
        )
    return value


TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
ADAPTER_CONFIG = "adapter_config.json"
"""In a model's folder it makes transformers load the model that it names instead."""

_DATA = (*TEXTS, ".safetensors")
_RUNS = (
    *(".py", ".pyc", ".so", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"),
)
_CONFIGS = "config.json"  # also the end of tokenizer_config.json, processor_config.json …
_NAMES_OF_CODE = frozenset({"auto_map", "auto_mapping", "custom_pipelines"})


def without_code(folder: Path, leave_out: Collection[str] = ()) -> Path:
    """Return a folder with the same data and no code; `folder` itself if it has none.

    Otherwise the files are links, and JSON that names code is a copy without these names. The
    result lies in `HF_HOME` under a name that follows from its contents, so that every host of a
    group finds it at the same path.

    Args:
        folder: of a checkpoint, a tokenizer or an adapter.
        leave_out: further names to leave out.

    Raises:
        ArtifactError: a JSON file is malformed, or `HF_HOME` cannot be written.
    """
    files = sorted(file for file in folder.iterdir() if file.is_file())
    changed = dict(
        change for file in files if file.name.endswith(_CONFIGS) and (change := _changed(file))
    )
    if not changed and not any(file.suffix in _RUNS or file.name in leave_out for file in files):
        return folder
    kept = [file for file in files if file.suffix in _DATA and file.name not in leave_out]
    contents = {file.name: changed.get(file.name) or str(file.absolute()) for file in kept}
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    destination = _cache() / digest
    try:
        if not destination.is_dir():
            _write(kept, changed, destination)
    except OSError as error:
        raise ArtifactError(
            f"{folder} holds code, and {destination.parent}, for links to its data, cannot be "
            f"written ({error.strerror}); make HF_HOME writable, or name a repository without code."
        ) from error
    return destination


def _changed(file: Path) -> tuple[str, str] | None:
    """Return a file's name and its text without code; None if it names none."""
    content = parse_json(str(file), file.read_bytes())
    plain = _plain(content)
    return None if plain == content else (file.name, json.dumps(plain, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = ((name, item) for name, item in value.items() if name not in _NAMES_OF_CODE)
        return {name: _plain(item) for name, item in kept}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _write(kept: Collection[Path], changed: Mapping[str, str], destination: Path) -> None:
    """Write the folder under another name first: another process may look for it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=destination.parent))
    try:
        for file in kept:
            if file.name in changed:
                (draft / file.name).write_text(changed[file.name], encoding="utf-8")
            else:
                (draft / file.name).symlink_to(file.absolute())
        draft.rename(destination)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not destination.is_dir():
            raise


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME).absolute() / "trtllm-truss/without-code"


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """One linear layer of a model that a LoRA adapter changes, by the names of its two matrices.

    Attributes:
        tensor: the name of either matrix in the adapter's file, for messages.
        layer: number of the decoder layer.
        path: below the decoder layer, such as ``self_attn.q_proj``.
        rank: rows of the first matrix, columns of the second.
        inputs: columns of the first matrix, the size of the layer's input.
        outputs: rows of the second matrix, the size of its output.
    """

    tensor: str
    layer: int
    path: str
    rank: int
    inputs: int
    outputs: int

    @property
    def module(self) -> str:
        """The name that TensorRT-LLM looks up: the path below attention or MLP."""
        return self.path.partition(".")[2]

    @property
    def numbers(self) -> int:
        return self.rank * (self.inputs + self.outputs)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One LoRA adapter, as its files describe it.

    Attributes:
        name: its key in `lora_adapters`.
    """

    name: str
    layers: tuple[AdaptedLayer, ...]

    @property
    def rank(self) -> int:
        """The largest rank; layers may differ."""
        return max(layer.rank for layer in self.layers)

    @property
    def numbers(self) -> int:
        return sum(layer.numbers for layer in self.layers)


@dataclass(frozen=True, slots=True)
class AdapterRepository:
    """The repository of one adapter, whose weights are not fetched yet.

    Attributes:
        repository: its name in config.yaml, without the revision.
        revision: as config.yaml names it.
    """

    repository: str
    revision: str | None
    adapter: Adapter
    source: Source
    files: tuple[str, ...]

    def fetch(self) -> Path:
        """Download the adapter and return its folder."""
        return self.source.fetch(self.files)
