"""Checkpoints for the backend `llm_api` with a fake of TensorRT-LLM's LLM API.

A server with `fake_library(version)` in its environment imports the package in `site`, whose worker
generates with OpenVINO GenAI from the checkpoint's folder `gguf`. Tests in this process put `SITE`
on `sys.path`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.support.paths import EXAMPLE, FAKES
from tests.support.truss_process import Served

from trtllm_truss.gguf import read_metadata
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer

VERSIONS = ("1.2.1", "1.3.0")
"""Versions that the fake behaves as; their keyword arguments differ."""

SITE = Path(__file__).parent / "site"
BACKENDS = Path(__file__).parent / "backends"
PROGRAMS = Path(__file__).parent / "bin"
COUNTING = {"TLLM_FAKE_COMPUTE": "tensorrt_llm.fake.counting:CountingCompute"}
"""Makes workers load at once and repeat the prompt."""

OPEN_MPI = "OPEN_MPI_PREFIX"
"""Names the folder of another Open MPI, such as a 4.1 of PyPI, with which servers are tested."""

_DTYPE_BYTES = 2


def fake_library(version: str) -> dict[str, str]:
    """Return the environment of a server that imports the fake."""
    return {
        **open_mpi(),
        "TRITON_BACKEND_DIRECTORY": str(BACKENDS),
        "TLLM_FAKE_VERSION": version,
        "PATH": os.pathsep.join((str(PROGRAMS), open_mpi()["PATH"], os.environ["PATH"])),
    }


def mpi_prefix(mpirun: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which MPI's daemon finds its files, as `mpirun` sets them."""
    prefix = mpirun.resolve().parent.parent
    libraries = environment.get("LD_LIBRARY_PATH")
    paths = [str(prefix / "lib"), *([libraries] if libraries else [])]
    return {
        **dict.fromkeys(("PRTE_PREFIX", "PMIX_PREFIX", "OPAL_PREFIX"), str(prefix)),
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
    }


def open_mpi() -> dict[str, str]:
    """Return the variables with which workers start under the MPI of this session."""
    prefix = Path(os.environ.get(OPEN_MPI) or sys.prefix)
    return {
        **mpi_prefix(prefix / "bin" / "mpirun", os.environ),
        "TLLM_FAKE_LIBMPI": str(prefix / "lib" / "libmpi.so.40"),
        "PATH": str(prefix / "bin"),  # of Open MPI's daemon
    }


def write_checkpoint(
    folder: Path, weights: Path, shape: Mapping[str, Any] | None = None, **behaviour: object
) -> Path:
    """Write SmolLM2 as a Hugging Face checkpoint; its safetensors file is sparse.

    Args:
        folder: created.
        weights: the GGUF file from which the worker generates.
        shape: replaces fields of `config.json`.
        behaviour: of the worker; for the keys see `site/tensorrt_llm/fake/worker.py`.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True)
    tokens = read_gguf_tokenizer(weights)
    (folder / "tokenizer.json").write_text(tokens.backend.to_str())
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": tokens.chat_templates["default"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = {**_config(read_metadata(weights)), **(shape or {})}
    (folder / "config.json").write_text(json.dumps(config))
    _write_sparse_weights(folder / "model.safetensors", config)
    misbehave(folder, weights=str(weights.parent), **behaviour)
    return folder


def misbehave(folder: Path, **behaviour: object) -> None:
    """Change the behaviour of workers that start later."""
    file = folder / "fake.json"
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**old, **behaviour}))


def copy_checkpoint(source: Path, folder: Path, **behaviour: object) -> Path:
    """Copy a checkpoint, its weights as a hard link, and change the behaviour."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".json":
            shutil.copy2(file, folder)
        else:
            (folder / file.name).hardlink_to(file)
    misbehave(folder, **behaviour)
    return folder


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def value(name: str) -> Any:
        return metadata[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "max_position_embeddings": value("context_length"),
        "vocab_size": value("vocab_size"),
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write_sparse_weights(file: Path, config: dict[str, Any]) -> None:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    layer = {
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [heads, hidden],
        "self_attn.v_proj": [heads, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden]}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = [hidden]
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + _DTYPE_BYTES * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as output:
        output.write(struct.pack("<Q", len(text)) + text)
        output.truncate(8 + len(text) + end)


def serve_checkpoint(
    folder: Path, version: str, environment: Mapping[str, str] = COUNTING, **metadata: object
) -> Served:
    """Start `trtllm-truss serve` on a checkpoint."""
    file = config_for_checkpoint(folder, **metadata)
    return Served(file, {**fake_library(version), **environment})


def config_for_checkpoint(folder: Path, **metadata: Any) -> Path:
    """Write a configuration that serves a checkpoint."""
    config = yaml.safe_load(EXAMPLE.read_text())
    has_torch = importlib.util.find_spec("torch") is not None
    config["external_package_dirs"] = [] if has_torch else [str(FAKES / "torch")]
    config["model_metadata"] = {"engine_repository": str(folder), **metadata}
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(config))
    return file
