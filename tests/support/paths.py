"""Folders and files of this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/smollm2-135m-cpu/config.yaml"
TEMPLATES = ROOT / "data/triton_model_repository"
TESTS = ROOT / "tests"
FAKES = TESTS / "fakes"
PROGRAMS = TESTS / "support/programs"
ELSEWHERE = {"clients", "dynamo_fleet", "gpu_host"}
"""Folders of tests that run in environments of their own."""
