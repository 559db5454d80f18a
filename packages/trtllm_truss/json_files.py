"""JSON files of repositories, read with pydantic models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trtllm_truss.errors import ArtifactError
from trtllm_truss.validation import broken_rule, dotted_path, shown

INT32_MAX = 2**31 - 1  # the runtime reads sizes as 32-bit integers
Size = Annotated[int, Field(ge=1, le=INT32_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=256)]

_SHOWN_BYTES = 20
_REMEDY = "take the file from the build's output."


class JsonObject(BaseModel):
    """The declared fields of a JSON object; others are ignored, and null counts as absent."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if value is not None}


Model = TypeVar("Model", bound=JsonObject)


def parse_json(file: str, content: bytes) -> object:
    """Parse a JSON file.

    Raises:
        ArtifactError: the content is not valid JSON.
    """
    try:
        parsed: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        if content.lstrip().startswith(b"<"):
            beginning = shown(content.lstrip()[:_SHOWN_BYTES].decode("utf-8", "replace"))
            raise ArtifactError(
                f"{file} starts with {beginning}: it is a web page, not the file; fetch it again."
            ) from None
        raise ArtifactError(f"{file} is not valid JSON ({error}); fetch it again.") from None
    return parsed


def json_object(file: str, content: object) -> Mapping[str, Any]:
    """Return a parsed file whose top level is an object.

    Raises:
        ArtifactError: the top level is not an object.
    """
    if not isinstance(content, Mapping):
        raise ArtifactError(f"{file} is not a JSON object; {_REMEDY}")
    return content


def read_model(model: type[Model], file: str, content: Mapping[str, Any]) -> Model:
    """Validate a parsed file.

    Raises:
        ArtifactError: a field is missing, of the wrong type or out of range.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
    path = dotted_path(finding["loc"])
    if finding["type"] == "missing":
        raise ArtifactError(
            f"{file} has no {path}; it is not the file that TensorRT-LLM's builder writes next "
            f"to the engine: {_REMEDY}"
        )
    raise ArtifactError(f"{file}: {broken_rule(finding, path)}; {_REMEDY}")
