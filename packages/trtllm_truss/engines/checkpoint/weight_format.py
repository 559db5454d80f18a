"""The number format of a checkpoint's weights, by ``config.json`` and ``hf_quant_config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.engines.number_formats import Quantization
from trtllm_truss.releases.tables import FACTS, Release, read_table

QUANTIZATION_FILE = "hf_quant_config.json"
"""ModelOpt's description of quantized weights, beside a checkpoint's ``config.json``."""

_MAX_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method that TensorRT-LLM reads; `releases/number_formats.toml` explains the columns."""

    name: str
    title: str
    algorithm: str | None = None
    described: bool = False
    block: tuple[int, ...] = ()
    since: Release
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadMethod:
    """A method that it does not read."""

    name: str
    title: str
    source: str


_METHODS = {row.name: row for row in read_table("number_formats", "weight_formats", Method)}
_UNREAD = {row.name: row for row in read_table("number_formats", "unread_weights", UnreadMethod)}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A number format.

    Attributes:
        quantization: in TensorRT-LLM's names.
        name: for messages; empty for weights that are not quantized.
        since: the first TensorRT-LLM that reads it; None if none does.
    """

    quantization: Quantization
    name: str = ""
    since: Release | None = FACTS["serves_checkpoints"].since


def weight_format(checkpoint: Checkpoint, described: object = None) -> WeightFormat:
    """Determine the format.

    Args:
        checkpoint: the contents of ``config.json``.
        described: the parsed `QUANTIZATION_FILE`, if there is one; it wins.
    """
    section = checkpoint.quantization
    if isinstance(described, Mapping):
        inner = described.get("quantization")
        section = inner if isinstance(inner, Mapping) else described
        return _known(checkpoint, section, _METHODS[QUANTIZATION_FILE])
    if not section:
        return WeightFormat(Quantization(checkpoint.dtype))
    method = (_text(section.get("quant_method")) or "").lower()
    known = _METHODS.get(method)
    if known is not None and _is_read(section, known):
        return _known(checkpoint, section, known)
    name = f"quant_method {method or 'unnamed'}"
    if unread := _UNREAD.get(method):
        name = f"{unread.title} ({name})"
    return WeightFormat(Quantization(checkpoint.dtype), name, None)


def _is_read(section: Mapping[str, Any], method: Method) -> bool:
    return not method.block or section.get("weight_block_size") == list(method.block)


def _known(checkpoint: Checkpoint, section: Mapping[str, Any], method: Method) -> WeightFormat:
    quantization, name = Quantization(checkpoint.dtype, method.algorithm), method.title
    if method.described:
        algorithm = _text(section.get("quant_algo"))
        cache = _text(section.get("kv_cache_quant_algo"))
        quantization = Quantization(checkpoint.dtype, algorithm, cache)
        name = f"{method.title} {algorithm or ''}"
    return WeightFormat(quantization, name, method.since)


def _text(value: object) -> str | None:
    return value[:_MAX_NAME] if isinstance(value, str) and value else None
