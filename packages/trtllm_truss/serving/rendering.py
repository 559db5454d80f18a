"""Settings and engine become the Triton model repository that serves them."""

from __future__ import annotations

import json
from pathlib import Path

from trtllm_truss.engines.concurrency import batch_size, instance_count, max_beam_width
from trtllm_truss.engines.inspection import Engine
from trtllm_truss.literals import rows_for
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime_parameters import PARAMETERS
from trtllm_truss.text.tokenizer_files import read_tokenizer_folder
from trtllm_truss.triton.model_repository.contract import MODEL_NAME
from trtllm_truss.triton.model_repository.native_models import InstanceCounts, render_native_models
from trtllm_truss.triton.model_repository.repository import render_repository

_TEMPLATE = "triton_model_repository"
_INFO_FILE = "xgrammar_tokenizer_info.json"
_MAX_BEAM_WIDTH = "max_beam_width"
_TOKENIZER_INFO = "xgrammar_tokenizer_info_path"


def render_engine(
    settings: Settings,
    engine: Engine,
    data_dir: Path,
    destination: Path,
    tensorrt_llm_version: str,
    tokenizer_dir: Path | None = None,
) -> Path:
    """Writes the model repository of one engine.

    `max_beam_width` is the engine's unless it is set, and `decoding_mode` is left to the backend,
    which then samples while its requests have one beam and searches while they have more. It never
    mixes widths: a request of another width waits until those that run have ended, and all behind
    it wait too. `max_beam_width: 1` spares the others that.

    With `guided_decoding_backend` the backend gets the vocabulary in a file beside `config.pbtxt`,
    unless `xgrammar_tokenizer_info_path` names one.

    Args:
        settings: `runtime` is what the operator sets; what an engine fixes is filled in.
        engine: its folder is linked to, never copied.
        data_dir: the Truss's data folder, which holds the template.
        destination: the repository's folder.
        tensorrt_llm_version: of the runtime that will load it; names of tensors and parameters
            follow it.
        tokenizer_dir: the tokenizer's files, if they are not beside the engine.

    Returns:
        `destination`.

    Raises:
        SettingsError: `runtime` does not fit the engine.
        ArtifactError: the tokenizer cannot be read.
    """
    tokenizer_dir = tokenizer_dir or engine.tokenizer_folder
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
        )
    parameters = dict(settings.runtime.parameters)
    if _MAX_BEAM_WIDTH in {row.name for row in rows_for(PARAMETERS, tensorrt_llm_version)}:
        parameters[_MAX_BEAM_WIDTH] = max_beam_width(settings, engine)
    info = tokenizer_info_file(settings, engine, destination)
    if info is not None:
        parameters[_TOKENIZER_INFO] = str(info)
    render_repository(
        data_dir / _TEMPLATE,
        destination,
        engine_dir=engine.folder,
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


def tokenizer_info_file(settings: Settings, engine: Engine, repository: Path) -> Path | None:
    """Locate TensorRT-LLM's vocabulary file for guides; None without guided decoding.

    Args:
        settings: the operator's settings.
        engine: the engine.
        repository: the model repository.
    """
    if engine.config is None or not settings.runtime.guided_decoding_backend:
        return None
    named = settings.runtime.xgrammar_tokenizer_info_path
    return Path(named) if named else repository.absolute() / MODEL_NAME / _INFO_FILE


def write_tokenizer_info(
    tokenizer_dir: Path, file: Path, *, trust_remote_code: bool = False
) -> None:
    """Writes what `xgrammar_tokenizer_info_path` names, all that the C++ backend reads.

    Keys: `encoded_vocab`, tokens by id as the tokenizer spells them, blank where an id has none;
    `tokenizer_str`, the `tokenizer.json`; `stop_token_ids`, one of which ends an answer. Source:
    `examples/generate_xgrammar_tokenizer_info.py` in NVIDIA/TensorRT-LLM (1.0).

    Args:
        tokenizer_dir: the tokenizer's files.
        file: what to write.
        trust_remote_code: whether a tokenizer that is a program may run.

    Raises:
        ArtifactError: the tokenizer cannot be read.
    """
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
