"""Our `tensorrt_llm` model against the template that the image ships, field by field.

The templates are `config.pbtxt` files with placeholders such as ``${triton_max_batch_size}`` in
place of numbers, booleans and data types; such values are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.contract import MODEL_NAME
from trtllm_truss.settings.runtime_parameters import PARAMETERS
from trtllm_truss.triton.protobuf import model_config_pb2

PLACES = tuple(
    f"{folder}/inflight_batcher_llm/{MODEL_NAME}/config.pbtxt"
    for folder in (
        "app/all_models",
        "app/tensorrt_llm/triton_backend/all_models",
        "app/triton_backend/all_models",
        "app/tensorrtllm_backend/all_models",
        "opt/tritonserver/all_models",
    )
)
"""Paths of the template in images, relative to ``/``."""

_OPEN_TYPE = re.compile(r"(data_type\s*:\s*)\$\{\w+\}")
_OPEN_FLAG = re.compile(r"(decoupled\s*:\s*)\$\{\w+\}")
_OPEN_NUMBER = re.compile(r'(?<!")\$\{\w+\}(?!")')
_OMITTED = frozenset(row.name for row in PARAMETERS if row.default is None)
"""Keys left out on purpose: the backend acts on their blank values."""

_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)


def find_template(root: Path = Path("/")) -> Path | None:
    """Return the template of this machine's image, if it has one."""
    return next((root / place for place in PLACES if (root / place).is_file()), None)


def read_template(path: Path) -> model_config_pb2.ModelConfig:
    """Parse a template; data types that are placeholders become ``TYPE_INVALID``.

    Raises:
        SettingsError: the file is missing or invalid.
    """
    try:
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        text = _OPEN_TYPE.sub(r"\1TYPE_INVALID", text)
        text = _OPEN_NUMBER.sub("1", _OPEN_FLAG.sub(r"\1true", text))
        return text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise SettingsError(f"{path} is not a readable Triton model config: {error}.") from error


def differences(
    ours: model_config_pb2.ModelConfig, template: model_config_pb2.ModelConfig
) -> list[str]:
    """Name every tensor in which our configuration differs, and every key that it lacks."""
    found = [*_tensors("input", ours.input, template.input)]
    found += _tensors("output", ours.output, template.output)
    left_out = template.parameters.keys() - ours.parameters.keys() - _OMITTED
    return found + [f"parameter {key}: missing in ours" for key in sorted(left_out)]


def unknown_keys(
    ours: model_config_pb2.ModelConfig, template: model_config_pb2.ModelConfig
) -> list[str]:
    """Return the parameters that the template lacks; its backend ignores them."""
    return sorted(ours.parameters.keys() - template.parameters.keys())


def _tensors(kind: str, ours: Iterable[Any], theirs: Iterable[Any]) -> list[str]:
    mine, yours = ({tensor.name: tensor for tensor in side} for side in (ours, theirs))
    found = [f"{kind} {name}: missing in ours" for name in yours.keys() - mine.keys()]
    found += [f"{kind} {name}: not in the template" for name in mine.keys() - yours.keys()]
    for name in mine.keys() & yours.keys():
        one, other = _fields(mine[name]), _fields(yours[name])
        if yours[name].data_type == model_config_pb2.TYPE_INVALID:
            del one["data_type"], other["data_type"]
        found += [
            f"{kind} {name}: {field} is {one[field]}, the template's {other[field]}"
            for field in one
            if one[field] != other[field]
        ]
    return sorted(found)


def _fields(tensor: Any) -> dict[str, object]:
    fields: dict[str, object] = {
        "data_type": model_config_pb2.DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
        "reshape": list(tensor.reshape.shape) if tensor.HasField("reshape") else "none",
    }
    if isinstance(tensor, model_config_pb2.ModelInput):
        fields["optional"] = tensor.optional
        fields["allow_ragged_batch"] = tensor.allow_ragged_batch
    return fields
