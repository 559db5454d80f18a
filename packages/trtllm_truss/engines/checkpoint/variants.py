"""Arguments of ``tensorrt_llm.LLM`` with fields by kind: speculation and sparse attention.

Each kind is a class that refuses the fields of other kinds. Some rules are only checked by
``TorchLlmArgs.validate_speculative_config``, some by an assertion without a message. Source:
``llmapi/llm_args.py`` of TensorRT-LLM, as given in `releases/llm_arguments.toml`.

A renamed field may be given by any of its names: the backend uses the one that the installed class
has.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.checkpoint.argument_table import (
    Argument,
    argument_error,
    parse_fields,
    read_arguments,
)
from trtllm_truss.engines.checkpoint.samplers import SPECULATION
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import Release, describe_releases, holds, read_table, rows_for
from trtllm_truss.validation import shown

SPARSE_ATTENTION = "sparse_attention_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kind of speculative decoding or of sparse attention.

    `releases/llm_arguments.toml` explains the columns.
    """

    name: str
    section: str = ""
    length: str = ""
    model: bool = False
    kind: str = ""
    since: Release
    until: Release | None = None
    source: str


_DRAFTS = read_table("llm_arguments", "decoding_kinds", Variant)
_SPARSE = read_table("llm_arguments", "sparse_attention_kinds", Variant)
VARIANTS = {SPECULATION: _DRAFTS, SPARSE_ATTENTION: _SPARSE}
DECODING_TYPES = tuple(row.name for row in _DRAFTS)
"""Kinds of speculative decoding with the PyTorch backend."""

DRAFT_MODEL = ("speculative_model", "speculative_model_dir", "pytorch_weights_path")
MTP_LENGTH = ("num_nextn_predict_layers", "max_draft_len")
"""Two names of one number in MTP: the first is read up to 1.2, the second from 1.3 on."""
RENAMED = (
    DRAFT_MODEL,
    ("begin_thinking_phase_token", "BEGIN_THINKING_PHASE_TOKEN"),
    ("end_thinking_phase_token", "END_THINKING_PHASE_TOKEN"),
)
"""Names of renamed fields over the releases."""

_ALGORITHM = "algorithm"
_LENGTH, _TREE, _TOP = "max_draft_len", "eagle_choices", "dynamic_tree_max_topK"
_DYNAMIC, _NODES = "use_dynamic_tree", "max_total_draft_tokens"
_SCHEDULE, _CONCURRENCY = "draft_len_schedule", "max_concurrency"


def parse_drafts(values: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Check `speculative_config`.

    Raises:
        SettingsError: a kind or field is not available in the release, a field is missing, values
            contradict each other, or a draft model is not a folder in the container.
    """
    kind = _variant(SPECULATION, "decoding_type", values, _DRAFTS, version)
    parsed = parse_fields(values, _rows(SPECULATION, kind), f"{SPECULATION}.", version)
    _check_names(parsed, kind.name)
    if kind.length and kind.length not in parsed:
        raise _error(kind.length, f"is missing; {kind.name} needs it, for example 3.")
    _check_model(parsed, kind)
    _check_tree(parsed)
    _check_schedule(parsed, version)
    if kind.name == "SA" and parsed.get("max_matching_ngram_size") == 0:
        raise _error("max_matching_ngram_size", "is 0; it must be -1 or at least 1.")
    if parsed.get("global_pool_size") and not parsed.get("enable_global_pool"):
        raise _error("global_pool_size", "is set without enable_global_pool; set both or none.")
    return parsed


def parse_sparse_attention(values: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Check `sparse_attention_config`; releases from 1.3 on have further algorithms.

    Raises:
        SettingsError: an algorithm or field is not available in the release.
    """
    is_known = any(row.name == values.get(_ALGORITHM) for row in _SPARSE)
    if not is_known and version is not None and not holds("knows_arguments", version):
        return dict(values)
    kind = _variant(SPARSE_ATTENTION, _ALGORITHM, values, _SPARSE, version)
    rows = _rows(SPARSE_ATTENTION, kind)
    return parse_fields(values, rows, f"{SPARSE_ATTENTION}.", version)


def variant_fields(argument: str, values: Mapping[str, Any]) -> tuple[Argument, ...]:
    """Return the fields of the kind that a mapping specifies; none for an unknown kind."""
    names = {SPECULATION: "decoding_type", SPARSE_ATTENTION: _ALGORITHM}
    given = values.get(names[argument]) if argument in names else None
    found = next((row for row in VARIANTS.get(argument, ()) if row.name == given), None)
    return _rows(argument, found) if found else ()


def _rows(argument: str, kind: Variant) -> tuple[Argument, ...]:
    base = "drafts" if argument == SPECULATION else "sparse"
    return (*read_arguments(base), *(read_arguments(kind.section) if kind.section else ()))


def _variant(
    argument: str,
    name: str,
    values: Mapping[str, Any],
    rows: Sequence[Variant],
    version: str | None,
) -> Variant:
    given = values.get(name)
    found = next((row for row in rows if row.name == given), None)
    if found is None:
        names = ", ".join(row.name for row in rows)
        raise argument_error(f"{argument}.{name}", f"is {shown(given)}; it must be one of {names}.")
    if not rows_for([found], version):
        raise argument_error(
            f"{argument}.{name}",
            f"is {given}, a kind of TensorRT-LLM {describe_releases(found)}, not of {version}; "
            "choose another.",
        )
    return found


def _check_names(parsed: Mapping[str, Any], kind: str) -> None:
    for names in (*RENAMED, *((MTP_LENGTH,) if kind == "MTP" else ())):
        given = [name for name in names if name in parsed]
        if len({str(parsed[name]) for name in given}) > 1:
            raise _error(
                given[1],
                f"differs from {given[0]}, which is another name of the same field; remove one.",
            )


def _check_model(parsed: Mapping[str, Any], kind: Variant) -> None:
    name = next((name for name in DRAFT_MODEL if name in parsed), None)
    if name is None:
        if kind.model:
            raise _error(DRAFT_MODEL[0], f"is missing; {kind.name} needs the draft model's folder.")
    elif not parsed[name].startswith("/"):
        raise _error(
            name,
            f"is {shown(parsed[name])}; it must be a folder in the container, such as one that "
            "`weights` of config.yaml mounts: the engine downloads nothing.",
        )


def _check_tree(parsed: dict[str, Any]) -> None:
    if (choices := parsed.get(_TREE)) is not None:
        parsed[_TREE] = choices = _read_tree(choices)
        if parsed.get(_DYNAMIC):
            raise _error(_DYNAMIC, f"is set with {_TREE}; remove one of them.")
        if any(len(path) > 1 and path[:-1] not in choices for path in choices):
            raise _error(_TREE, "contains a path whose prefix is not in the list.")
    if not parsed.get(_DYNAMIC):
        return
    if _TOP not in parsed:
        raise _error(_TOP, f"is missing; {_DYNAMIC} needs it.")
    least, most = parsed[_LENGTH], parsed[_LENGTH] * parsed[_TOP]
    if not least <= parsed.get(_NODES, least) <= most:
        raise _error(_NODES, f"is {parsed[_NODES]}; it must be from {least} to {most}.")


def _read_tree(choices: Any) -> list[list[int]]:
    """Return paths as a list; 1.0 and 1.1 do not accept text."""
    try:
        tree = ast.literal_eval(choices) if isinstance(choices, str) else choices
    except (ValueError, SyntaxError):
        tree = None
    is_tree = isinstance(tree, list) and bool(tree)
    if not is_tree or not all(
        isinstance(path, list) and path and all(type(step) is int for step in path) for path in tree
    ):
        raise _error(_TREE, "must be a list of paths, such as [[0], [0, 0], [1]].")
    return list(tree)


def _check_schedule(parsed: Mapping[str, Any], version: str | None) -> None:
    schedule = parsed.get(_SCHEDULE)
    if schedule is None:
        return
    longest = parsed.get(_LENGTH)
    sizes = {key: length for key, length in schedule.items() if key.isdecimal() and int(key) > 0}
    if (
        not schedule
        or sizes != schedule
        or not all(
            type(length) is int and 0 <= length <= (longest or length) for length in sizes.values()
        )
    ):
        raise _error(_SCHEDULE, f"must map batch sizes to lengths from 0 to {_LENGTH}.")
    first = min(sizes, key=int)
    if longest is not None and sizes[first] != longest:
        raise _error(_SCHEDULE, f"must have {_LENGTH}, {longest}, for its smallest batch size.")
    if version is not None and holds("schedules_begin_at_one", version) and int(first) != 1:
        raise _error(_SCHEDULE, f"must start with batch size 1 in TensorRT-LLM {version}.")
    if _CONCURRENCY in parsed:
        raise _error(_CONCURRENCY, f"is set with {_SCHEDULE}; remove one of them.")


def _error(name: str, problem: str) -> SettingsError:
    return argument_error(f"{SPECULATION}.{name}", problem)
