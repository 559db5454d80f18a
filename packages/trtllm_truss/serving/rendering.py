"""Render the Triton model repository from settings and engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.engines.engine import Engine
from trtllm_truss.releases.tables import MODEL_NAME
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.model_repository import (
    InstanceCounts,
    render_native_models,
    render_repository,
)

_TEMPLATE = "triton_model_repository"
_INFO_FILE = "xgrammar_tokenizer_info.json"


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
    batch = engine.batch_size(settings)
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
    model = engine.model_config(
        settings,
        tensorrt_llm_version,
        tokenizer_dir=tokenizer_dir,
        tokenizer_info=info,
        adapters=adapters,
    )
    render_repository(
        data_dir / _TEMPLATE,
        destination,
        engine_dir=model.engine_dir,
        backend=engine.backend,
        max_batch_size=batch,
        parameters=model.parameters,
        of_executor=model.of_executor,
        inputs=model.inputs,
        outputs=model.outputs,
        tensorrt_llm_version=tensorrt_llm_version,
        instance_count=engine.instance_count(settings),
    )
    if info is not None and not settings.runtime.xgrammar_tokenizer_info_path:
        is_trusted = settings.trust_remote_code
        write_tokenizer_info(tokenizer_dir, info, trust_remote_code=is_trusted)
    return destination


def tokenizer_info_file(settings: Settings, engine: Engine, repository: Path) -> Path | None:
    """Return the path of TensorRT-LLM's vocabulary file; None if no guide needs it."""
    if not engine.reads_tokenizer_info(settings):
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
