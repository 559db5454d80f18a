"""The layers: a package imports only earlier ones, and there are no circles."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.support.paths import ROOT

LAYERS = [
    *("errors", "processes", "literals", "yaml_files", "releases", "validation"),
    *("request_fields", "decoding", "requests", "json_files", "gguf", "local_requests"),
    *("observability", "settings", "artifacts", "engines", "machine"),
    *("conversation", "text", "tool_calls", "guides", "triton"),
    *("inference", "serving", "protocols", "configuration", "endpoints", "cli"),
]
"""Packages and modules of the top level, those below first; each imports earlier ones only."""

WORKBENCH_LAYERS = ["importers", "scaffold", "console", "selftest", "cli"]
OFFERED = {
    "importers": {
        *(
            "errors",
            "literals",
            "yaml_files",
            "releases",
            "validation",
            "settings",
        ),
        *(
            "engines",
            "triton",
        ),
    },
    "scaffold": {
        *(
            "",
            "errors",
            "releases",
            "json_files",
            "settings",
            "artifacts",
        ),
        *(
            "engines",
            "text",
            "serving",
            "configuration",
            "cli",
        ),
    },
    "console": {"errors", "local_requests", "observability", "settings", "endpoints"},
    "selftest": {
        *(
            "",
            "errors",
            "releases",
            "request_fields",
            "local_requests",
            "observability",
        ),
        *(
            "settings",
            "processes",
            "engines",
            "machine",
            "text",
            "triton",
        ),
        *(
            "serving",
            "configuration",
        ),
    },
    "cli": {
        *(
            "",
            "errors",
            "literals",
            "validation",
            "local_requests",
            "observability",
            "settings",
        ),
        *(
            "processes",
            "engines",
            "machine",
            "triton",
            "configuration",
            "cli",
        ),
    },
}
"""The parts of the server that each part of the workbench uses.

A list and not one module that offers everything: that module would repeat 148 names of 73 modules,
since the selftest measures the server's parts and `init` decides as a start does. No part uses a
request's way through the server: endpoints, protocols, inference, tools and guides.
"""

INDEPENDENT = [
    {"engines.compiled", "engines.checkpoint"},
    {"engines.compiled", "engines.cpu"},
    {"engines.checkpoint", "engines.cpu"},
    {"triton", "text"},
    {"protocols", "engines"},
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
_OF_TOKENS = {"decoding", "errors", "guides", "literals", "request_fields", "requests"}
IN_TRITON = {
    "kill_parent_on_death": set[str](),
    "tensors": {"errors", "literals"},
    "token_model": _OF_TOKENS,
    "llm_api": {*_OF_TOKENS, "engines", "processes"},
    "openvino_genai": {*_OF_TOKENS, "engines", "gguf"},
    "triton_native": {
        "decoding",
        "errors",
        "releases",
        "request_fields",
        "requests",
        "text",
        "triton",
    },
}
"""Modules of the server that each part of the code inside Triton may import."""
BACKEND_LAYERS = [
    "kill_parent_on_death",
    "tensors",
    "token_model",
    "llm_api",
    "openvino_genai",
    "triton_native",
]
ENTRIES = {"", "__main__"}


class Tree:
    """The modules of an import package, by dotted names below it.

    Args:
        root: its folder.
        layers: its modules and packages of the top level, those below first.
    """

    def __init__(self, root: Path, layers: list[str]) -> None:
        self.root = root
        self.layers = layers
        self.modules = sorted(root.rglob("*.py"))
        self.names = {self.dotted(module) for module in self.modules}
        self.packages = {self.dotted(file) for file in self.modules if file.name == "__init__.py"}

    def dotted(self, module: Path) -> str:
        path = module.relative_to(self.root)
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        return ".".join(parts)

    def layer_of(self, name: str) -> str | None:
        """Return the package of the top level; None for the entries."""
        package = name.partition(".")[0]
        return package if package in self.layers else None

    def imported(self, module: Path) -> set[str]:
        """Return the modules of this tree that a module of any tree imports."""
        prefix = f"{self.root.name}."
        names = (name for name in imports(module) if f"{name}.".startswith(prefix))
        ours = {name.partition(".")[2] for name in names}
        return {next((part for part in ancestors(name) if part in self.names), "") for name in ours}


BUILDER_LAYERS = ["converters", "commands", "gguf_conversion", "publishing", "plan", "jobs", "run"]
DYNAMO_LAYERS = ["configuration", "cached_blocks", "requests", "worker", "dynamo"]
SERVER = Tree(ROOT / "packages/trtllm_truss", LAYERS)
BACKENDS = Tree(ROOT / "packages/trtllm_backends", BACKEND_LAYERS)
BUILDER = Tree(ROOT / "packages/trtllm_builder", BUILDER_LAYERS)
WORKBENCH = Tree(ROOT / "workbench/trtllm_workbench", WORKBENCH_LAYERS)
DYNAMO = Tree(ROOT / "packages/trtllm_dynamo", DYNAMO_LAYERS)
TREES = [SERVER, BACKENDS, BUILDER, DYNAMO, WORKBENCH]

each_tree = pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.root.name)


def ancestors(name: str) -> list[str]:
    """Return a module and its packages, innermost first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


@cache
def imports(module: Path) -> set[str]:
    """Return the dotted names that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def upward_imports(tree: Tree, module: Path) -> set[str]:
    """Return the imports of a module that its layer forbids."""
    name, imported = tree.dotted(module), tree.imported(module)
    if (layer := tree.layer_of(name)) is None:
        return set()
    else:
        below = set(tree.layers[: tree.layers.index(layer) + 1])
        wrong = {other for other in imported - {""} if tree.layer_of(other) not in below}
    return wrong | {
        other
        for other in imported
        if any({one, two} in INDEPENDENT for one in ancestors(name) for two in ancestors(other))
    }


@each_tree
def test_every_package_has_a_layer(tree: Tree) -> None:
    assert {name.partition(".")[0] for name in tree.names} - ENTRIES == {*tree.layers}


@each_tree
def test_imports_point_one_way(tree: Tree) -> None:
    found = {tree.dotted(module): upward_imports(tree, module) for module in tree.modules}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@each_tree
def test_packages_import_each_other_in_no_circle(tree: Tree) -> None:
    graph: dict[str, set[str]] = {}
    for module in tree.modules:
        names = (tree.dotted(module), *tree.imported(module))
        package, *others = (name.partition(".")[0] for name in names)
        graph.setdefault(package, set()).update(set(others) - {package, ""})
    assert circle_of(graph) == []


@each_tree
def test_modules_import_each_other_in_no_circle(tree: Tree) -> None:
    """Imports for types count, and a package's own module does not."""
    graph = {
        name: tree.imported(module) - tree.packages - {name}
        for module in tree.modules
        if (name := tree.dotted(module)) not in tree.packages
    }
    assert circle_of(graph) == []


def circle_of(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the names along a circle; none without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def test_a_circle_is_found() -> None:
    assert sorted({*circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})}) == ["a", "b", "c"]
    assert circle_of({"a": {"b"}, "b": {"c"}}) == []


def test_the_server_does_not_import_the_workbench() -> None:
    """An image does not contain it; `__main__` checks whether it is there."""
    importers = {SERVER.dotted(file) for file in SERVER.modules if WORKBENCH.imported(file)}
    assert importers == {"__main__"}


def test_what_runs_in_triton_uses_little_of_the_server() -> None:
    for file in BACKENDS.modules:
        part = BACKENDS.dotted(file).partition(".")[0]
        used = {name.partition(".")[0] for name in SERVER.imported(file)}
        assert used <= IN_TRITON.get(part, set()), file


def test_nothing_imports_what_runs_in_triton() -> None:
    others = [*SERVER.modules, *BUILDER.modules, *DYNAMO.modules, *WORKBENCH.modules]
    assert not [file for file in others if BACKENDS.imported(file)]


def test_nothing_imports_the_worker_of_dynamo() -> None:
    others = [*SERVER.modules, *BACKENDS.modules, *BUILDER.modules, *WORKBENCH.modules]
    assert not [file for file in others if DYNAMO.imported(file)]


def test_the_builder_is_used_by_commands_and_a_start() -> None:
    users = {SERVER.dotted(file) for file in SERVER.modules if BUILDER.imported(file)}
    assert users == {"cli.baseten", "cli.build", "cli.check", "serving.preparation"}
    above = LAYERS.index("text") + 1
    for file in BUILDER.modules:
        assert {SERVER.layer_of(name) for name in SERVER.imported(file)} <= {*LAYERS[:above]}, file


def test_the_workbench_uses_what_the_server_offers() -> None:
    used: dict[str, set[str]] = {}
    for file in WORKBENCH.modules:
        part = WORKBENCH.dotted(file).partition(".")[0]
        layers = {SERVER.layer_of(name) or name for name in SERVER.imported(file)}
        used.setdefault(part, set()).update(layers)
    assert {part: layers for part, layers in used.items() if layers} == OFFERED
