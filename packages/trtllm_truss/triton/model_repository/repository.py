"""Render the Triton model repository of one engine from the template in ``data/``.

The template is valid ``config.pbtxt``, read and written through protobuf's text format, so a value
can never break the file's syntax.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.contract import (
    MODEL_NAME,
    OUTPUTS,
    Tensor,
    inputs_of,
)
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.settings.runtime import ParameterValue
from trtllm_truss.settings.runtime_parameters import PARAMETERS
from trtllm_truss.triton.protobuf import model_config_pb2

CONFIG_FILE = "config.pbtxt"
_HEADER = "# Rendered for one start of the server; changes here are lost at the next.\n"


def render_repository(
    template_dir: Path,
    destination: Path,
    *,
    engine_dir: Path,
    backend: str,
    max_batch_size: int,
    parameters: Mapping[str, ParameterValue],
    tensorrt_llm_version: str | None,
    instance_count: int = 1,
    of_executor: bool = True,
    inputs: Iterable[Tensor] = (),
    outputs: Iterable[Tensor] = (),
) -> Path:
    """Write ``destination/tensorrt_llm`` with its ``config.pbtxt`` and empty version folder.

    Args:
        template_dir: holds ``tensorrt_llm/config.pbtxt``, the configuration of the pinned version.
        destination: the repository; an existing ``tensorrt_llm`` is replaced.
        engine_dir: the engine's folder, passed to the backend as ``gpt_model_path``.
        backend: the Triton backend that loads the engine.
        max_batch_size: maximum of concurrent requests of the engine.
        parameters: the backend's parameters by their ``config.pbtxt`` names, valid for the version.
        tensorrt_llm_version: selects the declared names; None declares those of every version.
            Pass the same to :class:`TritonClient`.
        instance_count: engines on one GPU, each with its weights and KV cache; for an engine of one
            rank only.
        of_executor: whether the parameters are those of the template, beside `parameters`.
        inputs: tensors of this engine beyond those of the version.
        outputs: the same.

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
    _declare(config.input, (*inputs_of(tensorrt_llm_version), *inputs))
    _declare(config.output, (*rows_for(OUTPUTS, tensorrt_llm_version), *outputs))
    if not of_executor:
        config.parameters.clear()  # the template's are those of the executor
    else:
        _fit_parameters(config, tensorrt_llm_version)
    for name, value in parameters.items():
        config.parameters[name].string_value = _text(value)
    config.parameters["gpt_model_path"].string_value = str(engine_dir)
    write_config(config, destination)
    return destination


def write_config(config: model_config_pb2.ModelConfig, destination: Path) -> Path:
    """Write a model's ``config.pbtxt`` into a repository; replace an earlier model.

    Returns:
        The model's version folder, which is empty.
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
    """Drop the parameters that a release does not know; add those that the template lacks."""
    known = {row.name: row.default for row in rows_for(PARAMETERS, version)}
    for name in set(config.parameters) - known.keys():
        del config.parameters[name]
    for name, default in known.items():
        if default is not None and name not in config.parameters:
            config.parameters[name].string_value = default


def _text(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _declare(fields: Any, rows: Iterable[Tensor]) -> None:
    """Declare exactly the tensors of ``rows``, those of the template first."""
    wanted = {row.name: row for row in rows}
    for index in reversed(range(len(fields))):
        field = fields[index]
        row = wanted.pop(field.name, None)
        if row is None:
            del fields[index]
            continue
        if isinstance(field, model_config_pb2.ModelInput):
            field.optional = row.optional
        if not row.scalar:
            field.ClearField("reshape")
    for row in wanted.values():
        field = fields.add()
        field.name, field.dims[:] = row.name, row.dims
        field.data_type = model_config_pb2.DataType.Value(f"TYPE_{row.dtype}")
        if isinstance(field, model_config_pb2.ModelInput):
            field.optional, field.allow_ragged_batch = row.optional, row.ragged
        if row.scalar:
            field.reshape.SetInParent()
