"""The layers: a package imports only packages above it, and modules stay small."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "packages/trtllm_truss"
LAYERS = [
    *("errors", "literals", "releases", "printable", "validation", "requests"),
    *("settings", "settings.lmi_import", "guard"),
    *("artifacts", "engines", "engines.checkpoint", "engines.compatibility", "guides", "processes"),
    "machine",
    *("triton.protobuf", "triton.model_repository", "triton.client", "triton.server"),
    *("hosts", "text", "tool_calls"),
    *("builder.planning", "builder.checks", "builder.gguf", "builder", "builder.run"),
    *("metrics", "inference", "serving"),
    *("protocols", "protocols.openai", "protocols.predict", "protocols.lmi"),
    "protocols.responses",
    "protocols.messages",
    *("configuration", "endpoints", "scaffold", "console"),
    *("selftest.bench", "selftest.checks", "selftest", "cli"),
]
INDEPENDENT = [
    {"triton", "text"},
    {"protocols", "inference"},
    {"protocols", "serving"},
    {"protocols", "triton"},
    {"protocols.predict", "protocols.lmi"},
    {"protocols.lmi", "protocols.openai"},
    {"protocols.predict", "protocols.responses"},
    {"protocols.lmi", "protocols.responses"},
    {"protocols.predict", "protocols.messages"},
    {"protocols.lmi", "protocols.messages"},
    {"protocols.openai", "protocols.messages"},
    {"protocols.responses", "protocols.messages"},
]
"""Pairs that must not import each other, although the order allows one direction."""
BACKENDS = {
    "backends": {"backends"},
    "backends.llm_api": {"backends", "errors", "literals", "engines", "guides"},
    "backends.openvino_genai": {"backends", "errors", "literals", "engines", "guides"},
    "backends.token_model": {"backends", "errors", "literals", "guides"},
    "backends.triton_native": {"backends", "errors", "triton", "text"},
}
"""The code inside Triton's processes imports as little as possible."""
ENTRIES = {"", "__main__"}
LONGEST_LINES = 600
MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(module: Path) -> str:
    """Return the dotted name of a module below the package."""
    path = module.relative_to(PACKAGE)
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)


NAMES = {dotted(module) for module in MODULES}
PACKAGES = {dotted(module) for module in MODULES if module.name == "__init__.py"}


def ancestors(name: str) -> list[str]:
    """Return a module and its packages, innermost first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def layer_of(name: str) -> str | None:
    return next((part for part in ancestors(name) if part in LAYERS), None)


def imported_modules(module: Path) -> set[str]:
    """Return the imported modules of this package."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name.partition(".")[2] for name in names if name.startswith("trtllm_truss.")}
    return {next((part for part in ancestors(name) if part in NAMES), "") for name in ours}


def upward_imports(module: Path) -> set[str]:
    """Return the imports of a module that its layer forbids."""
    name, imported = dotted(module), imported_modules(module)
    if allowed := next((BACKENDS[part] for part in ancestors(name) if part in BACKENDS), None):
        return {other for other in imported if other.partition(".")[0] not in allowed}
    if (layer := layer_of(name)) is None:
        return set()
    above = set(LAYERS[: LAYERS.index(layer) + 1])
    return {
        other
        for other in imported - {""}
        if layer_of(other) not in above
        or any({one, two} in INDEPENDENT for one in ancestors(name) for two in ancestors(other))
    }


def test_every_package_has_a_layer() -> None:
    bare = {name for name in PACKAGES if name.startswith("backends") or name in {"", "triton"}}
    assert PACKAGES - bare == set(LAYERS) & PACKAGES
    assert set(LAYERS) <= NAMES
    assert {name for name in NAMES if layer_of(name) is None} == bare | ENTRIES | {
        name for name in NAMES if name.startswith("backends")
    }


def test_imports_point_one_way() -> None:
    assert {dotted(module): found for module in MODULES if (found := upward_imports(module))} == {}


def test_modules_are_small() -> None:
    lines = {
        dotted(module): len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES
    }
    assert {name: count for name, count in lines.items() if count > LONGEST_LINES} == {}
