"""The keys of `runtime` by release: parameters of Triton's ``tensorrt_llm`` model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key of the model's ``parameters``; `releases/parameters.toml` explains the columns."""

    name: str
    kind: Literal["bool", "int", "ints", "float", "text", "path"]
    default: str | None = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    since: Release
    until: Release | None = None
    instead: str = ""
    source: str


MODEL_FIELDS = read_table("parameters", "model_fields", Parameter)
"""Keys of `runtime` that are fields of config.pbtxt, not parameters."""

PARAMETERS = (
    *read_table("parameters", "parameters", Parameter),
    *read_table("parameters", "parameters_left_out", Parameter),
)
