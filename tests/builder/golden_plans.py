"""Plans of every family × quantization × tensor parallelism in one text, golden/plans.txt.

`python -m tests.builder.golden_plans` rewrites the file; review the difference.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.builder.checkpoints import CONFIGS, H100, checkpoint, settings

from trtllm_builder.commands import FAMILIES
from trtllm_builder.plan import BuildPlan, plan_build

GOLDEN = Path(__file__).parent / "golden/plans.txt"
SPLITS = (1, 2, 4, 8)
OWN: dict[str, dict[str, Any]] = {"Baichuan": {"baichuan_model_version": "v2_13b"}}


def variants() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield family, tensor parallelism and `build` block."""
    for family in FAMILIES:
        quantizations: list[dict[str, Any]] = [{}]
        quantizations += [
            {"quantization": {"method": method}} for method in sorted(family.quantizations)
        ]
        quantizations += [{"kv_cache_dtype": kind} for kind in sorted(family.kv_cache_dtypes)]
        for quantization in quantizations:
            for split in SPLITS:
                yield family.name, split, OWN.get(family.name, {}) | quantization


def plan(family: str, split: int, block: dict[str, Any]) -> BuildPlan:
    """Return a plan for the pinned version."""
    wanted, build = settings({"max_batch_size": 64, **block}, tensor_parallelism=split)
    return plan_build(wanted, build, checkpoint(family), H100)


def text() -> str:
    """Return all plans, or the errors that reject them."""
    parts = []
    for family, split, block in variants():
        title = f"# {family}, TP {split}, {block or 'plain'}"
        try:
            lines = [shlex.join(step.command) for step in plan(family, split, block).steps]
        except Exception as error:  # noqa: BLE001 - refusals are golden as well
            lines = [f"{type(error).__name__}: {error}"]
        parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts).replace("'$", "$").replace("' ", " ") + "\n"


assert set(CONFIGS) == {family.name for family in FAMILIES}

if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
