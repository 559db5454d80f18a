"""The tables of docs/llm-api.md; the other text is written by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tools.docs.tables import in_cells, table

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
    rows = [[cell, *fate] for fate, names in fates.items() for cell in in_cells(names)]
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
    whole = [[_names([row]), cell] for row in rows if row.fields for cell in _cells(row.fields)]
    for argument, kinds in VARIANTS.items():
        if argument == SPECULATION:
            drafts = _cells(read_arguments("drafts"))
            whole += [[f"`{argument}`, all kinds", cell] for cell in drafts]
        whole += [
            [f"`{argument}`, {_names(alike)}", cell or "–"]
            for section, alike in _by_section(kinds).items()
            for cell in _cells(read_arguments(section) if section else ())
        ]
    plain = [row for row in rows if not row.fields and row.name not in VARIANTS]
    return table(["argument", "its fields"], [*whole, *([cell, ""] for cell in _cells(plain))])


def _by_section(kinds: Sequence[Variant]) -> dict[str, list[Variant]]:
    alike: dict[str, list[Variant]] = defaultdict(list)
    for kind in kinds:
        alike[kind.section].append(kind)
    return alike


def _names(rows: Sequence[Argument | Variant]) -> str:
    return ", ".join(_spanned(rows))


def _cells(rows: Sequence[Argument | Variant]) -> Iterator[str]:
    return in_cells(_spanned(rows))


def _spanned(rows: Sequence[Argument | Variant]) -> list[str]:
    """Return names with the releases that have them, one for all rows of a name."""
    spans: dict[str, tuple[Release, Release | None]] = {}
    for row in rows:
        if not getattr(row, "refused", ""):
            since, _ = spans.get(row.name, (row.since, None))
            spans[row.name] = (since, row.until)
    return [f"`{name}`{_span(*span)}" for name, span in spans.items()]


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
    rows = [[cell, reason] for reason, names in reasons.items() for cell in in_cells(names)]
    return table(["refused", "because"], rows)


def _architectures() -> str:
    names: dict[str, list[str]] = defaultdict(list)
    for name, row in ARCHITECTURES.items():
        blackwell = " (Blackwell)" if row.minimum_capability else ""
        names[f"{dotted(row.since)} on"].append(f"`{name}`{blackwell}")
    for name, reason in UNSERVED.items():
        names[f"not: {reason}"].append(f"`{name}`")
    rows = [[since, cell] for since, listed in names.items() for cell in in_cells(listed)]
    return table(["TensorRT-LLM", "first of `architectures`"], rows)
