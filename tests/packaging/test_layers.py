"""The layers: a package imports only packages above it, and modules stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.support.paths import ROOT

PACKAGE = ROOT / "packages/trtllm_truss"
LAYERS = [
    *("errors", "literals", "validation", "requests", "settings", "settings.lmi_import"),
    *("artifacts", "engines", "engines.compatibility", "guides", "processes"),
    *("triton.model_repository", "triton.client", "triton.server", "text", "tool_calls"),
    *("builder.planning", "builder.checks", "builder.gguf", "builder", "builder.run"),
    *("metrics", "inference", "serving"),
    *("protocols", "protocols.predict", "protocols.lmi", "protocols.openai"),
    *("configuration", "endpoints", "cli"),
]
INDEPENDENT = [
    {"triton", "text"},
    {"protocols", "inference"},
    {"protocols", "serving"},
    {"protocols", "triton"},
    {"protocols.predict", "protocols.lmi"},
    {"protocols.predict", "protocols.openai"},
    {"protocols.lmi", "protocols.openai"},
]
"""Pairs that must not import each other, although the order allows one direction."""
BACKENDS = {
    "backends": {"backends"},
    "backends.openvino_genai": {"backends", "errors", "literals", "engines", "guides"},
    "backends.triton_native": {"backends", "errors", "triton", "text"},
}
"""The code inside Triton's processes imports as little as possible."""
ENTRIES = {"", "__main__"}
LONGEST_LINES = 400
MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(module: Path) -> str:
    """The module below the package; a package is named by its folder."""
    path = module.relative_to(PACKAGE)
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)


NAMES = {dotted(module) for module in MODULES}
PACKAGES = {dotted(module) for module in MODULES if module.name == "__init__.py"}


def ancestors(name: str) -> list[str]:
    """A module and the packages around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def layer_of(name: str) -> str | None:
    return next((part for part in ancestors(name) if part in LAYERS), None)


def imported_modules(module: Path) -> set[str]:
    """The modules of this package that one imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name.partition(".")[2] for name in names if name.startswith("trtllm_truss.")}
    return {next((part for part in ancestors(name) if part in NAMES), "") for name in ours}


def test_every_package_has_a_layer() -> None:
    bare = {name for name in PACKAGES if name.startswith("backends") or name in {"", "triton"}}
    assert PACKAGES - bare == set(LAYERS) & PACKAGES
    assert set(LAYERS) <= NAMES
    assert {name for name in NAMES if layer_of(name) is None} == bare | ENTRIES | {
        name for name in NAMES if name.startswith("backends")
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_point_one_way(module: Path) -> None:
    name, imported = dotted(module), imported_modules(module)
    if allowed := next((BACKENDS[part] for part in ancestors(name) if part in BACKENDS), None):
        assert {other.partition(".")[0] for other in imported} <= allowed
    elif (layer := layer_of(name)) is not None:
        above = set(LAYERS[: LAYERS.index(layer) + 1])
        assert {other for other in imported - {""} if layer_of(other) not in above} == set()
        pairs = [{one, two} for one in ancestors(name) for o in imported for two in ancestors(o)]
        assert [pair for pair in pairs if pair in INDEPENDENT] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_modules_are_small(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= LONGEST_LINES
