"""Render the Triton model repository from settings and engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_truss.engines.concurrency import (
    batch_size,
    guided_decoding_backend,
    instance_count,
    max_beam_width,
)
from trtllm_truss.engines.inspection import Engine, EngineKind
from trtllm_truss.engines.scheduling import scheduling_of
from trtllm_truss.engines.without_code import without_code
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.settings.llm_runtime_keys import KEPT_KEYS
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import ParameterValue
from trtllm_truss.settings.runtime_parameters import PARAMETERS
from trtllm_truss.triton.model_repository.contract import MODEL_NAME
from trtllm_truss.triton.model_repository.native_models import InstanceCounts, render_native_models
from trtllm_truss.triton.model_repository.repository import render_repository

_TEMPLATE = "triton_model_repository"
_INFO_FILE = "xgrammar_tokenizer_info.json"
_MAX_BEAM_WIDTH = "max_beam_width"
_POLICY, _CHUNKS = "batch_scheduler_policy", "enable_chunked_context"
_NUM_NODES, _GPUS = "num_nodes", "gpu_device_ids"
_TOKENIZER_INFO = "xgrammar_tokenizer_info_path"


def render_engine(
    settings: Settings,
    engine: Engine,
    data_dir: Path,
    destination: Path,
    tensorrt_llm_version: str,
    tokenizer_dir: Path,
    adapters: Mapping[str, Path],
) -> Path:
    """Write the model repository of one engine and return its folder.

    `max_beam_width` defaults to the engine's. `decoding_mode` is left to the backend, which samples
    requests with one beam and searches for the others. It never mixes widths: a request of another
    width waits until the running ones have ended, and blocks the queue meanwhile.
    `max_beam_width: 1` avoids that.

    With `guided_decoding_backend` the vocabulary is written next to `config.pbtxt`, unless
    `xgrammar_tokenizer_info_path` names a file.

    Args:
        settings: the operator's settings; parameters fixed by the engine are filled in.
        engine: its folder is referenced, not copied; a checkpoint's without its code, unless that
            is trusted.
        data_dir: the Truss's data folder, which contains the template.
        destination: folder of the repository.
        tensorrt_llm_version: version of the runtime, which decides the names of tensors and
            parameters.
        tokenizer_dir: folder of the tokenizer.
        adapters: folders of a checkpoint's LoRA adapters by name, numbered from 1.

    Raises:
        SettingsError: `runtime` does not fit the engine.
        ArtifactError: the tokenizer is unreadable.
    """
    batch = batch_size(settings, engine)
    if settings.serving.triton_native:
        render_native_models(
            data_dir / _TEMPLATE,
            destination,
            tokenizer_dir=tokenizer_dir,
            trust_remote_code=settings.trust_remote_code,
            max_batch_size=batch,
            counts=InstanceCounts(
                settings.preprocessing_instance_count,
                settings.postprocessing_instance_count,
                settings.bls_instance_count,
            ),
            tensorrt_llm_version=tensorrt_llm_version,
            decoupled=settings.serving.triton_decoupled_mode,
        )
    info = tokenizer_info_file(settings, engine, destination)
    engine_dir = engine.folder
    if engine.llm_args is not None and engine.checkpoint is not None:
        of_tokenizer = tokenizer_dir
        if not settings.trust_remote_code:
            engine_dir, of_tokenizer = without_code(engine_dir), without_code(tokenizer_dir)
        parameters = _llm_parameters(settings, engine.llm_args, of_tokenizer)
        parameters["vocab_size"] = engine.checkpoint.vocab_size
        if adapters:
            parameters["lora_adapters"] = _numbered(adapters)
    else:
        parameters = dict(settings.runtime.parameters)
        scheduling = scheduling_of(settings.runtime, engine)
        parameters.setdefault(_POLICY, scheduling.policy)
        if scheduling.chunked_context:
            parameters.setdefault(_CHUNKS, True)
        if _MAX_BEAM_WIDTH in {row.name for row in rows_for(PARAMETERS, tensorrt_llm_version)}:
            parameters[_MAX_BEAM_WIDTH] = max_beam_width(settings, engine)
        if info is not None:
            parameters[_TOKENIZER_INFO] = str(info)
        if settings.node_count > 1:
            parameters[_NUM_NODES] = settings.node_count
            # A rank's GPU is else its number modulo the GPUs per host that the build assumed.
            here = engine.world_size // settings.node_count
            parameters.setdefault(_GPUS, tuple(range(here)))
    render_repository(
        data_dir / _TEMPLATE,
        destination,
        engine_dir=engine_dir,
        backend=engine.kind.value,
        max_batch_size=batch,
        parameters=parameters,
        tensorrt_llm_version=tensorrt_llm_version,
        instance_count=instance_count(settings, engine),
    )
    if info is not None and not settings.runtime.xgrammar_tokenizer_info_path:
        is_trusted = settings.trust_remote_code
        write_tokenizer_info(tokenizer_dir, info, trust_remote_code=is_trusted)
    return destination


def _llm_parameters(
    settings: Settings, llm_args: Mapping[str, Any], tokenizer_dir: Path
) -> dict[str, ParameterValue]:
    """Return the parameters of the backend `llm_api`."""
    given = settings.runtime.parameters
    return {
        **{name: value for name, value in given.items() if name in KEPT_KEYS},
        "tokenizer_dir": str(tokenizer_dir.resolve()),
        "llm_args": json.dumps(llm_args),
        "hang_timeout_s": settings.serving.hang_timeout_s,
    }


def _numbered(adapters: Mapping[str, Path]) -> str:
    return json.dumps(
        {
            str(number): {"name": name, "path": str(without_code(folder.resolve()))}
            for number, (name, folder) in enumerate(adapters.items(), 1)
        }
    )


def tokenizer_info_file(settings: Settings, engine: Engine, repository: Path) -> Path | None:
    """Return the path of TensorRT-LLM's vocabulary file; None without guided decoding.

    An engine of the CPU and its compiler of guides read the tokenizer itself.
    """
    if engine.kind is EngineKind.CPU or not guided_decoding_backend(settings, engine):
        return None
    named = settings.runtime.xgrammar_tokenizer_info_path
    return Path(named) if named else repository.absolute() / MODEL_NAME / _INFO_FILE


def write_tokenizer_info(
    tokenizer_dir: Path, file: Path, *, trust_remote_code: bool = False
) -> None:
    """Write the file of `xgrammar_tokenizer_info_path` for the C++ backend.

    Keys: `encoded_vocab`, tokens by id in the tokenizer's spelling, empty for unused ids;
    `tokenizer_str`, the `tokenizer.json`; `stop_token_ids`, the ids that end an answer. Source:
    `examples/generate_xgrammar_tokenizer_info.py` in NVIDIA/TensorRT-LLM (1.0).

    Args:
        tokenizer_dir: folder of the tokenizer.
        file: file to write.
        trust_remote_code: run tokenizers that contain Python code.

    Raises:
        ArtifactError: the tokenizer is unreadable.
    """
    from trtllm_truss.text.tokenizer_files import read_tokenizer_folder

    parts = read_tokenizer_folder(tokenizer_dir, trust_remote_code=trust_remote_code)
    ids = parts.backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    info = {
        "encoded_vocab": tokens,
        "tokenizer_str": parts.backend.to_str(),
        "stop_token_ids": list(parts.eos_ids),
    }
    file.write_text(json.dumps(info), encoding="utf-8")
