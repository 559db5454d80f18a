"""The tables of docs/llm-api.md; the other text is written by hand."""

from __future__ import annotations

from collections import defaultdict

from tools.docs.tables import table

from trtllm_truss.engines.checkpoint.arguments import (
    LLM_ARGUMENTS,
    RUNTIME_KEYS,
    Argument,
    RuntimeKey,
)
from trtllm_truss.engines.checkpoint.weights import ARCHITECTURES, UNSERVED
from trtllm_truss.releases import FACTS, dotted


def llm_api_tables() -> dict[str, str]:
    """Return the tables by their names in the page."""
    return {
        "runtime": _runtime_keys(),
        "arguments": _arguments(),
        "refused": _refused_arguments(),
        "architectures": _architectures(),
    }


def _runtime_keys() -> str:
    fates: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, key in RUNTIME_KEYS.items():
        fates[_fate(key)].append(f"`{name}`")
    rows = [[", ".join(names), outcome, text] for (outcome, text), names in fates.items()]
    return table(["key of `runtime`", "outcome", ""], rows)


def _fate(key: RuntimeKey) -> tuple[str, str]:
    if key.argument:
        return "argument", f"`{key.argument}`" + (f" ({key.note})" if key.note else "")
    if key.handled:
        return "kept", f"the backend {key.handled}"
    if key.unused:
        return "no effect", key.unused
    return "refused", key.refused


def _arguments() -> str:
    rows = [row for row in LLM_ARGUMENTS if not row.refused]
    whole = [
        [_name(row), ", ".join(_name(field) for field in row.fields if not field.refused)]
        for row in rows
        if row.fields
    ]
    plain = ", ".join(_name(row) for row in rows if not row.fields)
    return table(["argument", "its fields"], [*whole, [plain, ""]])


def _name(row: Argument) -> str:
    if row.since > FACTS["serves_checkpoints"].since:
        return f"`{row.name}` (from {dotted(row.since)})"
    return f"`{row.name}`" if row.until is None else f"`{row.name}` (before {dotted(row.until)})"


def _refused_arguments() -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in LLM_ARGUMENTS:
        if row.refused:
            reasons[row.refused].append(f"`{row.name}`")
        for field in row.fields:
            if field.refused:
                reasons[field.refused].append(f"`{row.name}.{field.name}`")
    return table(
        ["refused", "because"], [[", ".join(names), reason] for reason, names in reasons.items()]
    )


def _architectures() -> str:
    names: dict[str, list[str]] = defaultdict(list)
    for name, row in ARCHITECTURES.items():
        blackwell = " (Blackwell)" if row.minimum_capability else ""
        names[f"{dotted(row.since)} on"].append(f"`{name}`{blackwell}")
    for name, reason in UNSERVED.items():
        names[f"not: {reason}"].append(f"`{name}`")
    rows = [[since, ", ".join(listed)] for since, listed in names.items()]
    return table(["TensorRT-LLM", "first of `architectures`"], rows)
