"""The tables of assumptions in docs/engines.md and docs/llm-api.md."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.tables import table

from trtllm_workbench.selftest.assumptions.checkpoints import CHECKPOINTS
from trtllm_workbench.selftest.assumptions.run import ENGINES
from trtllm_workbench.selftest.assumptions.served import Assumption, Unchecked

_COLUMNS = (
    "row",
    "assumption",
    "TensorRT-LLM",
    "source",
    "if it is otherwise",
    "`selftest` checks",
)


def engine_assumptions() -> dict[str, str]:
    """Return the table of docs/engines.md by its name."""
    return {"assumptions": _table(ENGINES)}


def checkpoint_assumptions() -> dict[str, str]:
    """Return the table of docs/llm-api.md by its name."""
    return {"assumptions": _table(CHECKPOINTS)}


def _table(rows: Sequence[Assumption]) -> str:
    cells = [
        [f"`{row.id}`", row.sentence, row.releases, row.source, row.otherwise, _check(row)]
        for row in rows
    ]
    assumed = [f"`{row.id}`" for row in rows if row.is_assumed]
    checked = sum(not isinstance(row.check, Unchecked) for row in rows)
    names = f" ({', '.join(assumed)})" if assumed else ""
    return (
        table(_COLUMNS, cells)
        + f"\nOf {len(rows)} rows, {len(assumed)} have no source for some releases{names}. "
        f"`selftest` checks {checked}.\n"
    )


def _check(row: Assumption) -> str:
    if isinstance(row.check, Unchecked):
        return f"not checked: {row.check.why}"
    return row.check.how
