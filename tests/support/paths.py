"""Folders and files of this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/smollm2-135m-cpu/config.yaml"
TEMPLATES = ROOT / "data/triton_model_repository"
FAKES = ROOT / "tests/fakes"
PROGRAMS = ROOT / "tests/support/programs"
