"""The house: a room imports only rooms above it, and modules stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "packages/trtllm_truss"
ROOMS = [
    *("errors", "validation", "settings", "artifacts", "engines", "guides", "triton", "text"),
    *("builder", "serving", "protocols", "endpoints", "cli"),
]
STRANGERS = {("triton", "text"), ("text", "triton")}
LONGEST_LINES = 400
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(module: Path) -> set[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "trtllm_truss" and len(part) > 1}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_point_one_way(module: Path) -> None:
    room, imported = room_of(module), imported_rooms(module)
    if room == "backends":  # runs inside Triton; its text models need more than themselves
        is_text_model = module.parent.name == "triton_native"
        assert imported <= {
            "backends",
            "errors",
            *(("triton", "text") if is_text_model else ("engines", "guides")),
        }
    elif room in ROOMS:
        assert imported <= set(ROOMS[: ROOMS.index(room) + 1])
        assert not {(room, other) for other in imported} & STRANGERS


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_modules_are_small(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= LONGEST_LINES
