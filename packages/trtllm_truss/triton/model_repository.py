"""Render the Triton model repository of one engine from the template in ``data/``.

The template is valid ``config.pbtxt``, read and written in protobuf's text format, so a value can
never break the file's syntax.

The repository also contains text models for clients of Triton's own API. Source of their names,
types and shapes: the models of the same names in ``triton_backend/all_models/inflight_batcher_llm``
of NVIDIA/TensorRT-LLM (1.0) and ``all_models/inflight_batcher_llm`` of
triton-inference-server/tensorrtllm_backend (up to 0.19). :mod:`trtllm_backends.triton_native`
implements them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import INPUTS, MODEL_NAME, OUTPUTS, Tensor, holds, inputs_of, rows_for
from trtllm_truss.request_fields import SAMPLING
from trtllm_truss.settings.runtime import PARAMETERS, parameter_text
from trtllm_truss.triton.protobuf import model_config_pb2

CONFIG_FILE = "config.pbtxt"
_HEADER = "# Rendered for one start of the server; changes here are lost at the next.\n"


def render_repository(
    template_dir: Path,
    destination: Path,
    model: ModelConfig,
    *,
    backend: str,
    max_batch_size: int,
    tensorrt_llm_version: str | None,
    instance_count: int = 1,
) -> Path:
    """Write ``destination/tensorrt_llm`` with its ``config.pbtxt`` and an empty version folder.

    Args:
        template_dir: contains ``tensorrt_llm/config.pbtxt``, without tensors and parameters.
        destination: the repository; an existing ``tensorrt_llm`` is replaced.
        model: what depends on the engine; its parameters are valid for the version.
        backend: the Triton backend that loads the engine.
        max_batch_size: maximum number of concurrent requests in the engine.
        tensorrt_llm_version: selects the declared names; None declares those of every version.
            Pass the same to :class:`TritonClient`.
        instance_count: engines on one GPU, each with its weights and KV cache; for an engine of one
            rank only.

    Returns:
        ``destination``.

    Raises:
        SettingsError: the template is missing or not valid.
    """
    config = read_config(template_dir / MODEL_NAME / CONFIG_FILE)
    config.backend = backend
    config.max_batch_size = max_batch_size
    config.instance_group[0].count = instance_count
    if config.dynamic_batching.preferred_batch_size:
        config.dynamic_batching.preferred_batch_size[:] = [max_batch_size]
    _declare(config.input, (*inputs_of(tensorrt_llm_version), *model.inputs))
    _declare(config.output, (*rows_for(OUTPUTS, tensorrt_llm_version), *model.outputs))
    if not model.of_executor:
        config.parameters.clear()
    else:
        _fit_parameters(config, tensorrt_llm_version)
    spellings = {
        row.name: row.read_as for row in rows_for(PARAMETERS, tensorrt_llm_version) if row.read_as
    }
    for name, value in model.parameters.items():
        for key in filter(None, (name, spellings.get(name))):
            config.parameters[key].string_value = parameter_text(value)
    config.parameters["gpt_model_path"].string_value = str(model.engine_dir)
    write_config(config, destination)
    return destination


def write_config(config: model_config_pb2.ModelConfig, destination: Path) -> Path:
    """Write a model's ``config.pbtxt`` into a repository, replacing an earlier model.

    Returns:
        The model's empty version folder.
    """
    model_dir: Path = destination / config.name
    shutil.rmtree(model_dir, ignore_errors=True)
    version_dir = model_dir / "1"
    version_dir.mkdir(parents=True)
    text = text_format.MessageToString(config, as_utf8=True)
    (model_dir / CONFIG_FILE).write_text(_HEADER + text, encoding="utf-8")
    return version_dir


def read_config(path: Path) -> model_config_pb2.ModelConfig:
    """Parse a ``config.pbtxt``.

    Raises:
        SettingsError: the file is missing or invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise SettingsError(f"{path} is not a readable Triton model config: {error}.") from error


def _fit_parameters(config: model_config_pb2.ModelConfig, version: str | None) -> None:
    """Set a release's parameters, with their defaults."""
    known = {row.name: row.default for row in rows_for(PARAMETERS, version)}
    for name in set(config.parameters) - known.keys():
        del config.parameters[name]
    for name, default in known.items():
        if default is not None and name not in config.parameters:
            config.parameters[name].string_value = default


def _declare(fields: Any, rows: Iterable[Tensor]) -> None:
    """Declare exactly the tensors of ``rows``."""
    del fields[:]
    for row in {row.name: row for row in rows}.values():
        field = fields.add()
        field.name, field.dims[:] = row.name, row.dims
        field.data_type = model_config_pb2.DataType.Value(f"TYPE_{row.dtype}")
        if isinstance(field, model_config_pb2.ModelInput):
            field.optional, field.allow_ragged_batch = row.optional, row.ragged
        if row.scalar:
            field.reshape.SetInParent()


PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
BLS = "tensorrt_llm_bls"
ENSEMBLE = "ensemble"

_VERSION_FOLDER = "1"
_OLDER_NAMES = {
    **{row.name: older for row in SAMPLING for older in row.tensors[1:]},
    "return_perf_metrics": "return_kv_cache_reuse_stats",
}
_ENGINE_NAMES = frozenset(row.name for row in (*INPUTS, *OUTPUTS))


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    preprocessing: int = 1
    postprocessing: int = 1
    bls: int = 1


def render_native_models(
    template_dir: Path,
    destination: Path,
    *,
    tokenizer_dir: Path,
    trust_remote_code: bool = False,
    max_batch_size: int,
    counts: InstanceCounts,
    tensorrt_llm_version: str | None,
    decoupled: bool = True,
    refused: Mapping[str, str] | None = None,
) -> None:
    """Write the four models into a repository, replacing earlier ones.

    Args:
        template_dir: contains each model's ``config.pbtxt`` and, except for the ensemble,
            ``1/model.py``.
        trust_remote_code: see `load_tokenizer`.
        max_batch_size: maximum number of concurrent requests in the engine.
        tensorrt_llm_version: selects the declared names; None declares those of every version.
        decoupled: let `ensemble` and `tensorrt_llm_bls` send several responses to one request.
            `tensorrt_llm` always does, because the Truss streams from it.
        refused: errors for request fields that the engine refuses, by field.

    Raises:
        SettingsError: a template is missing or invalid, or requires `decoupled`.
    """
    if not decoupled and not holds(
        "senders_without_decoupled", tensorrt_llm_version or None, unknown=True
    ):
        raise SettingsError(
            "config.yaml: model_metadata.serving.triton_decoupled_mode is false, which works from "
            f"TensorRT-LLM 0.10 (image 24.06) on, and this is {tensorrt_llm_version}; remove the "
            "setting or use a newer image."
        )
    instances = {
        PREPROCESSING: counts.preprocessing,
        POSTPROCESSING: counts.postprocessing,
        BLS: counts.bls,
        ENSEMBLE: None,
    }
    for name, count in instances.items():
        config = read_config(template_dir / name / CONFIG_FILE)
        config.max_batch_size = max_batch_size
        if count is not None:
            config.instance_group[0].count = count
            config.parameters["tokenizer_dir"].string_value = str(tokenizer_dir)
            config.parameters["trust_remote_code"].string_value = str(trust_remote_code).lower()
        if name in (BLS, ENSEMBLE):
            _fit(config, tensorrt_llm_version)
            config.model_transaction_policy.decoupled = decoupled
        if name == BLS:
            config.parameters["refused_fields"].string_value = json.dumps(refused or {})
        folder = write_config(config, destination)
        if count is not None:
            shutil.copy2(template_dir / name / _VERSION_FOLDER / "model.py", folder)


def _fit(config: model_config_pb2.ModelConfig, version: str | None) -> None:
    """Declare the engine's tensors on a pass-through model."""
    known = {row.name for row in (*rows_for(INPUTS, version), *rows_for(OUTPUTS, version))}
    for fields in (config.input, config.output):
        _rename(fields, known)
    for step in config.ensemble_scheduling.step:
        for mapping, fields in ((step.input_map, config.input), (step.output_map, config.output)):
            mapping.clear()
            mapping.update({field.name: field.name for field in fields})


def _rename(fields: Any, known: set[str]) -> None:
    for field in tuple(fields):
        older = _OLDER_NAMES.get(field.name)
        if older in known:
            fields.add().CopyFrom(field)
            fields[-1].name = older
        if field.name in _ENGINE_NAMES and field.name not in known:
            fields.remove(field)
