"""Links, commands, settings, paths, messages and figures in the documentation."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools.docs.troubleshooting import BUILD_LINES

from trtllm_builder import run
from trtllm_truss import errors
from trtllm_truss.protocols.predict import ALIASES, PredictBody
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Serving
from trtllm_workbench.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages/trtllm_truss"
PACKAGES = (*sorted(ROOT.glob("packages/trtllm_*")), ROOT / "workbench/trtllm_workbench")
FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FOLDERS = "packages|workbench|tests|tools|benchmarks|model|data|examples"
PLACEHOLDER = "…"

each_page = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """Return inline code, also across lines."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def anchors(text: str) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {
        f"{slug}-{before}" if (before := slugs[:place].count(slug)) else slug
        for place, slug in enumerate(slugs)
    }


def rows(text: str, head: str) -> Iterator[list[str]]:
    """Yield the rows of every table whose first column is `head`."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == head:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            yield cells


@each_page
def test_links_and_anchors_resolve(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        path, _, anchor = link.partition("#")
        target = file.parent / path if path else file
        if "://" not in link:
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@each_page
def test_named_tests_exist(file: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page(str(file.relative_to(ROOT)))):
        tree = ast.parse(page(path))
        assert name in {getattr(node, "name", None) for node in tree.body}, f"{path}::{name}"


@cache
def options_of(command: str) -> set[str]:
    """Return the options in the help of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0, command
    return set(re.findall(r"--[a-z][a-z-]*", shown.getvalue()))


@each_page
def test_commands_and_options_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    blocks = "\n".join(FENCE.findall(text)).replace("\\\n", " ")
    for line in [*blocks.splitlines(), *spans(text)]:
        found = re.search(r"(?:^|[ /$])trtllm-truss ([a-z].*)", line.partition(" #")[0])
        if found is not None:
            command, *arguments = shlex.split(found[1])
            used = {word.partition("=")[0] for word in arguments if word.startswith("--")}
            assert used <= options_of(command), line


@each_page
def test_make_targets_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):.*## ", page("Makefile"), re.MULTILINE))
    lines = [*spans(text), *"\n".join(FENCE.findall(text)).splitlines()]
    named = {found[1] for line in lines if (found := re.match(r"(?:\$ )?make ([a-z]+)\b", line))}
    assert named <= targets


@each_page
def test_settings_exist(file: Path) -> None:
    for section, model in (("serving", Serving), ("build", Build)):
        for span in spans(file.read_text(encoding="utf-8")):
            if named := re.fullmatch(rf"(?:model_metadata\.)?{section}\.(\w+)(?:[.:].*)?", span):
                assert named[1] in model.model_fields, span


@each_page
def test_paths_exist(file: Path) -> None:
    """Look for paths relative to the root or to the package."""
    for span in spans(file.read_text(encoding="utf-8")):
        if re.fullmatch(rf"({FOLDERS})/[\w./-]+", span):
            assert (ROOT / span).exists(), span
        elif file.name == "architecture.md" and re.fullmatch(r"[a-z_]+(/[\w]+)+(\.py)?/?", span):
            assert (PACKAGE / span).exists() or (PACKAGE.parent / span).exists(), span
        elif re.fullmatch(r"trtllm_truss(\.\w+)+", span):
            assert list(PACKAGE.glob(f"{span.partition('.')[2].replace('.', '/')}*")), span


def test_the_layers_are_those_of_the_import_test() -> None:
    names = runpy.run_path(str(ROOT / "tests/packaging/test_layers.py"))
    for head, name in (("layer", "LAYERS"), ("layer of the workbench", "WORKBENCH_LAYERS")):
        top = dict.fromkeys(name.partition(".")[0] for name in names[name])
        listed = [row[0].strip("`") for row in rows(page("docs/architecture.md"), head)]
        assert listed == list(top)


def test_every_page_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", page("docs/README.md")))
    assert named == {file.name for file in ROOT.glob("docs/*.md")} - {"README.md"}


def test_the_figures_of_the_readme_are_measured() -> None:
    text = page("README.md")
    figures = re.findall(r"[\d,.]+ ±[\d,.]+", text)
    assert len(figures) >= 3
    measured = page("docs/performance.md")
    assert [figure for figure in figures if f"| {figure} |" not in measured] == []


def test_the_predict_page_has_every_field() -> None:
    named = [
        re.findall(r"`(\w+)`", row[0]) for row in rows(page("docs/predict.md"), "field")
    ]  # one or several fields, then aliases
    assert {name for names in named for name in names} == {*PredictBody.model_fields, *ALIASES}
    for names in named:
        aliases = [name for name in names if name in ALIASES]
        assert {ALIASES[alias] for alias in aliases} <= {names[0]}


@pytest.mark.parametrize("name", ["docs/predict.md", "docs/troubleshooting.md"])
def test_every_error_of_a_request_is_listed(name: str) -> None:
    kinds = [errors.TrussError]
    for kind in kinds:
        kinds += [sub for sub in kind.__subclasses__() if sub is not errors.StartupError]
    listed = " ".join(
        f"{row[0]} {row[1]}"
        for head in ("status", "status and code")
        for row in rows(page(name), head)
    )
    for kind in kinds:
        assert re.search(rf"\b{kind.status}\b[^`]* `{kind.code}`", listed), kind


def test_every_example_of_a_client_is_run() -> None:
    text = page("docs/clients.md")
    titles = re.findall(r"^## (.+)$", prose(text), re.MULTILINE)
    tests = "".join(file.read_text() for file in ROOT.glob("tests/clients/test_*.py"))
    assert len(titles) > 10
    assert [title for title in titles if f'"{title}"' not in tests] == []


def literals() -> Iterator[str]:
    """Yield every string of the package, with a placeholder for each formatted value."""
    for module in (module for package in PACKAGES for module in package.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = node.values
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
                    for part in parts
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\d.]*[sdgf]", PLACEHOLDER, node.value)


def test_the_messages_of_troubleshooting_are_in_the_code() -> None:
    in_code = "\n".join(literals())
    messages = [row[0].strip("`") for row in rows(page("docs/troubleshooting.md"), "message")]
    assert len(messages) > 20
    assert [message for message in messages if message not in in_code] == []


def test_the_build_lines_of_troubleshooting_have_every_cause() -> None:
    explained = [run.describe_failure("STEP", 1, [line], ROOT) for line in BUILD_LINES]
    for _, sentence in run._CAUSES:
        assert any(sentence in message for message in explained), sentence
