"""The tables of docs/llm-api.md; the other text is written by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tools.docs.tables import table

from trtllm_truss.engines.checkpoint.argument_table import Argument, read_arguments
from trtllm_truss.engines.checkpoint.arguments import RUNTIME_KEYS, RuntimeKey
from trtllm_truss.engines.checkpoint.llm_args import LLM_ARGUMENTS
from trtllm_truss.engines.checkpoint.samplers import SPECULATION
from trtllm_truss.engines.checkpoint.variants import VARIANTS, Variant
from trtllm_truss.engines.checkpoint.weights import ARCHITECTURES, UNSERVED
from trtllm_truss.releases import FACTS, Release, dotted


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
    whole = [[_names([row]), _names(row.fields)] for row in rows if row.fields]
    for argument, kinds in VARIANTS.items():
        if argument == SPECULATION:
            whole.append([f"`{argument}`, all kinds", _names(read_arguments("drafts"))])
        whole += [
            [f"`{argument}`, {_names(alike)}", _fields(section) or "–"]
            for section, alike in _by_section(kinds).items()
        ]
    plain = [row for row in rows if not row.fields and row.name not in VARIANTS]
    return table(["argument", "its fields"], [*whole, [_names(plain), ""]])


def _fields(section: str) -> str:
    return _names(read_arguments(section)) if section else ""


def _by_section(kinds: Sequence[Variant]) -> dict[str, list[Variant]]:
    alike: dict[str, list[Variant]] = defaultdict(list)
    for kind in kinds:
        alike[kind.section].append(kind)
    return alike


def _names(rows: Sequence[Argument | Variant]) -> str:
    """Return names with the releases that have them, one for all rows of a name."""
    spans: dict[str, tuple[Release, Release | None]] = {}
    for row in rows:
        if not getattr(row, "refused", ""):
            since, _ = spans.get(row.name, (row.since, None))
            spans[row.name] = (since, row.until)
    return ", ".join(f"`{name}`{_span(*span)}" for name, span in spans.items())


def _span(since: Release, until: Release | None) -> str:
    if since > FACTS["serves_checkpoints"].since:
        return f" (from {dotted(since)})"
    return "" if until is None else f" (before {dotted(until)})"


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
