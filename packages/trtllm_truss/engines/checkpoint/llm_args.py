"""`runtime.llm_args`: arguments of ``tensorrt_llm.LLM``, checked before anything starts.

TensorRT-LLM refuses a wrong argument itself, but only in the container, after the download.
Whatever passes here for a release must pass there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trtllm_truss.engines.checkpoint.argument_table import (
    Argument,
    argument_error,
    parse_fields,
    read_arguments,
    schema_of,
)
from trtllm_truss.engines.checkpoint.samplers import SPECULATION
from trtllm_truss.engines.checkpoint.variants import (
    SPARSE_ATTENTION,
    parse_drafts,
    parse_sparse_attention,
    variant_fields,
)
from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.releases import holds
from trtllm_truss.settings.runtime import SECTION
from trtllm_truss.validation import shown

LLM_ARGUMENTS = (*read_arguments("arguments"), *read_arguments("engine_arguments"))

_VARIANTS: dict[str, Callable[[Mapping[str, Any], str | None], dict[str, Any]]] = {
    SPECULATION: parse_drafts,
    SPARSE_ATTENTION: parse_sparse_attention,
}
_GRAPHS, _SIZES, _LARGEST = "cuda_graph_config", "batch_sizes", "max_batch_size"
_MOE, _BALANCER = "moe_config", "load_balancer"
_CONNECTOR = "kv_connector_config"


def parse_llm_args(values: Mapping[str, Any], version: str | None = None) -> dict[str, Any]:
    """Check the values of all known arguments.

    Args:
        values: the section as parsed from YAML; null means not set, except for an object, where it
            disables the feature.
        version: version of TensorRT-LLM; None for any, where unknown names are accepted.

    Raises:
        SettingsError: an argument is unknown, of the wrong type, out of range, not allowed, or
            contradicts another; its ``param`` names it.
    """
    try:
        values = json.loads(json.dumps(values, allow_nan=False))  # all names are strings
    except (TypeError, ValueError) as error:
        problem = f"holds a value that JSON cannot express ({error})."
        raise argument_error("", problem) from None
    parsed = parse_fields(values, LLM_ARGUMENTS, "", version)
    for name, parse in _VARIANTS.items():
        if parsed.get(name):
            parsed[name] = parse(parsed[name], version)
    _check_graphs(parsed.get(_GRAPHS) or {})
    _check_balancer((parsed.get(_MOE) or {}).get(_BALANCER))
    _check_connector(parsed.get(_CONNECTOR))
    return parsed


def _check_graphs(graphs: dict[str, Any]) -> None:
    """Refuse two sizes that differ; drop the derived one, which some releases accept only alone.

    Source: ``validate_cuda_graph_config`` of ``TorchLlmArgs``, 1.0.0 to 1.2.1: both must equal the
    values that it would generate. Late in 1.3.0 the largest must match the list.
    """
    sizes, largest = graphs.get(_SIZES), graphs.get(_LARGEST)
    if not (sizes and largest):
        return
    if largest != max(sizes):
        raise argument_error(
            f"{_GRAPHS}.{_LARGEST}",
            f"is {largest}, but the largest of {_SIZES} is {max(sizes)}; remove one of them.",
        )
    del graphs[_LARGEST]


def _check_balancer(balancer: object) -> None:
    is_path = isinstance(balancer, str) and balancer.startswith("/")
    if not (balancer is None or is_path or isinstance(balancer, Mapping)):
        raise argument_error(
            f"{_MOE}.{_BALANCER}",
            f"is {shown(balancer)}; it must be a file in the container, or a mapping.",
        )


def _check_connector(connector: Mapping[str, Any] | None) -> None:
    """Refuse an incomplete connector; from 1.3 on a preset may replace all parts."""
    if connector is None or "connector" in connector:
        return
    parts = [f"connector_{part}" for part in ("module", "scheduler_class", "worker_class")]
    if missing := [name for name in parts if name not in connector]:
        raise argument_error(f"{_CONNECTOR}.{missing[0]}", "is missing; set it to a string.")


def llm_args_schema() -> dict[str, Any]:
    """Return the JSON schema of the section, for all releases."""
    return schema_of(LLM_ARGUMENTS)


def doubtful_arguments(values: Mapping[str, Any], version: str | None) -> Iterator[Diagnostic]:
    """Yield a warning for each argument that is probably a mistake, or unknown in a new release."""
    prefix = f"config.yaml: model_metadata.runtime.{SECTION}."
    for path, value, row in _settings(values, LLM_ARGUMENTS, ""):
        if row is not None and row.warning and value:
            yield warning("llm_argument_doubtful", f"{prefix}{path} {row.warning}")
    if version is not None and not holds("knows_arguments", version):
        for path, _, row in _settings(values, LLM_ARGUMENTS, ""):
            if row is None:
                yield warning(
                    "llm_argument_unknown",
                    f"{prefix}{path} is not known here; TensorRT-LLM {version} decides at its "
                    "start.",
                )


def _settings(
    values: Mapping[str, Any], rows: Sequence[Argument], path: str
) -> Iterator[tuple[str, Any, Argument | None]]:
    """Yield path, value and row of each argument and of each known object's fields."""
    for name, value in values.items():
        row = next((row for row in rows if row.name == name), None)
        yield f"{path}{name}", value, row
        if row and isinstance(value, Mapping) and (f := row.fields or variant_fields(name, value)):
            yield from _settings(value, f, f"{path}{name}.")
