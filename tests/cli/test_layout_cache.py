"""Layouts that a later start takes from the user's cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from trtllm_workbench.cli import layout
from trtllm_workbench.cli.layout import lay_out
from trtllm_workbench.cli.layout_cache import LayoutCache

CONFIG = "model_name: a\npython_version: py311\nsecrets: {hf_access_token: null}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "trtllm-truss/layouts"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "model").mkdir(parents=True)
    (folder / "model/model.py").write_text("A = 1")
    (folder / "config.yaml").write_text(CONFIG)
    return folder


def kept(source: Path, tmp_path: Path, settings: dict[str, Any] | None = None) -> bool:
    """Cache a layout of the source, and return whether a later start finds it."""
    root = tmp_path / "written"
    root.mkdir(exist_ok=True)
    (root / "a").write_text("content")
    LayoutCache(settings or {}, source).keep(root, ["*.log"])
    return found(source, tmp_path, settings)


def found(source: Path, tmp_path: Path, settings: dict[str, Any] | None = None) -> bool:
    destination = tmp_path / "read"
    patterns = LayoutCache(settings or {}, source).read(destination)
    if patterns is None:
        return False
    assert patterns == ["*.log"]
    assert (destination / "a").read_text() == "content"
    return True


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_a_second_layout_is_the_first_without_truss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truss = tmp_path / "truss"
    for name in ("model/model.py", "data/a", "data/a.log", "packages/ours/a.py"):
        (truss / name).parent.mkdir(parents=True, exist_ok=True)
        (truss / name).write_text(name)
    (truss / "config.yaml").write_text(CONFIG)

    def contents(name: str) -> dict[Path, bytes]:
        root = tmp_path / name
        root.mkdir()
        lay_out(truss, None, root)
        files = (path for path in root.rglob("*") if path.is_file())
        return {file.relative_to(root): file.read_bytes() for file in files}

    first = contents("first")
    assert Path("app/main.py") in first
    assert Path("app/data/a.log") not in first
    staged = []
    monkeypatch.setattr(layout, "_stage", lambda *_: staged.append(1) or 1 / 0)
    assert contents("second") == first
    (truss / "model/model.py").write_text("changed")
    with pytest.raises(ZeroDivisionError):
        contents("third")
    assert staged == [1]


@pytest.mark.parametrize("name", ["model/model.py", "config.yaml", "requirements.txt"])
def test_each_file_that_truss_reads_counts(source: Path, tmp_path: Path, name: str) -> None:
    assert kept(source, tmp_path)
    (source / name).write_text("other")
    assert not found(source, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"secrets": {"a": "hidden"}},
        {"environment_variables": {"A": "hidden"}},
        {"model_cache": [{"repo_id": "org/name"}]},
        {"external_data": [{"url": "https://example.com/a"}]},
    ],
)
def test_confidential_and_changing_layouts_are_not_kept(
    source: Path, tmp_path: Path, cache: Path, settings: dict[str, Any]
) -> None:
    assert not kept(source, tmp_path, settings)
    assert not cache.exists()


def test_a_layout_that_truss_warns_about_is_not_kept(source: Path, tmp_path: Path) -> None:
    """A later start would lose the warning."""
    warned = LayoutCache({}, source)
    with warned.watching():
        logging.getLogger("truss").warning("deprecated")
    warned.keep(source, [])
    assert not found(source, tmp_path)
    assert kept(source, tmp_path)


def test_a_folder_that_others_can_write_is_not_used(
    source: Path, tmp_path: Path, cache: Path
) -> None:
    """Its files are run."""
    assert kept(source, tmp_path)
    cache.parent.chmod(0o777)
    assert not found(source, tmp_path)


def test_only_the_newest_stay(source: Path, tmp_path: Path, cache: Path) -> None:
    for number in range(18):
        (source / "config.yaml").write_text(f"model_name: a{number}")
        assert kept(source, tmp_path)
    assert len([*cache.iterdir()]) == 16


@pytest.mark.parametrize("home", ["/proc/none", "relative"])
def test_without_a_cache_nothing_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", "/proc/none")
    assert not kept(source, tmp_path)
