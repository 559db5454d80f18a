"""The contract of Triton's ``tensorrt_llm`` model: its inputs and outputs by release."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtllm_truss.releases.tables import read_table, rows_for
from trtllm_truss.releases.versions import Release, release

MODEL_NAME = "tensorrt_llm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the model; `releases/contract.toml` explains the columns."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True
    scalar: bool = False
    ragged: bool = False
    since: Release
    until: Release | None = None
    optional_since: Release = ()
    scalar_since: Release = ()
    source: str


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The output tensor that reports a prompt's cached tokens.

    Attributes:
        output: name of the tensor.
        unit_tokens: tokens that count as one in it.
    """

    output: str
    unit_tokens: int


INPUTS = read_table("contract", "inputs", Tensor)
OUTPUTS = read_table("contract", "outputs", Tensor)
LLM_API_INPUTS = read_table("contract", "llm_api_inputs", Tensor)
LLM_API_OUTPUTS = read_table("contract", "llm_api_outputs", Tensor)
"""The further outputs of the backend `llm_api`."""

(CACHED_TOKENS,) = read_table("contract", "own_outputs", Tensor)
"""An output of this project's backends: prompt tokens that the KV cache had; in one response."""
(REUSED_BLOCKS,) = (row for row in OUTPUTS if row.name == "kv_cache_reused_blocks")
"""Blocks of the KV cache that the prompt found; the last one may be used in part."""


def inputs_of(version: str | None) -> tuple[Tensor, ...]:
    """Return the inputs of a release as that release declares them; None is every release's."""
    rows = rows_for(INPUTS, version)
    if version is None:
        return rows
    here = release(version)
    return tuple(
        replace(
            row,
            optional=row.optional and row.optional_since <= here,
            scalar=row.scalar and row.scalar_since <= here,
        )
        for row in rows
    )
