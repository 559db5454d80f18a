"""Lay out a Truss on disk as in its container, from Truss's build context, without Docker."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.configuration import CONFIDENTIAL, read_config
from trtllm_truss.errors import SettingsError
from trtllm_truss.validation import broken_rule, dotted_path
from trtllm_workbench.cli.layout_cache import LayoutCache
from trtllm_workbench.scaffold.docker_server import SLIM

_BYTECODE = "__pycache__"
_IGNORED = shutil.ignore_patterns(_BYTECODE, "*.egg-info")


def lay_out(truss: Path, config: Path | None, root: Path) -> None:
    """Fill the empty folder `root` with the `/app` and `/packages` of the image.

    `config` replaces the Truss's config.yaml, as with `truss push --config`. Truss would copy
    packages and data four times, so they are placed directly, without the files that it ignores.

    Raises:
        SettingsError: the folder is not a Truss, or Truss rejects its config.yaml.
    """
    settings = read_config(truss, config)
    source, staged = root / "truss", root / "staged"
    placed = _write_source(truss, config, settings, source)
    os.environ[SLIM] = "true"  # of `docker_server`: without Truss's proxy and supervisor
    cache = LayoutCache(settings, source)
    ignored = cache.read(root)
    if ignored is None:
        with cache.watching():
            ignored = _stage(source, root / "context", staged)
        cache.keep(staged, ignored)
        shutil.copytree(staged, root, dirs_exist_ok=True)
        shutil.rmtree(staged)
    for folder, place in placed:
        _copy(folder, root / place, ignored)
    shutil.rmtree(source)


def _stage(source: Path, context: Path, staged: Path) -> list[str]:
    """Write Truss's part of the layout; return the patterns of files that Truss ignores.

    Truss's import takes 1.5 s of CPU time.
    """
    from pydantic import ValidationError
    from truss.base.constants import SERVER_CODE_DIR, SHARED_SERVING_AND_TRAINING_CODE_DIR
    from truss.base.errors import Error as TrussLibraryError
    from truss.contexts.image_builder.serving_image_builder import ServingImageBuilderContext
    from truss.contexts.local_loader.docker_build_emulator import DockerBuildEmulator
    from truss.util.path import load_trussignore_patterns

    try:
        ServingImageBuilderContext.run(source).prepare_image_build_dir(context)
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors(include_url=False)))
        raise SettingsError(f"Truss rejects config.yaml: {problems}.") from None
    except (TrussLibraryError, ValueError, TypeError) as error:
        raise SettingsError(f"Truss rejects the configuration: {error}") from None
    staged.mkdir()
    DockerBuildEmulator(context / "Dockerfile", context).run(staged)
    shutil.rmtree(context)
    _copy_bytecode(SERVER_CODE_DIR, staged / "app")
    _copy_bytecode(SHARED_SERVING_AND_TRAINING_CODE_DIR, staged / "app/_truss_shared")
    return [*load_trussignore_patterns()]


def _problem(finding: Mapping[str, Any]) -> str:
    """Format an item of `ValidationError.errors()` in one line, without the value of a secret."""
    name = dotted_path(finding["loc"])
    if finding["type"] == "missing":
        return f"{name} is missing"
    rule = str(finding["msg"]).removeprefix("Value error, ").rstrip(".")
    if name.startswith(CONFIDENTIAL):
        return f"{name}: {rule[:1].lower()}{rule[1:]}"
    return broken_rule({**finding, "msg": rule}, name)


def _copy(folder: Path, destination: Path, patterns: list[str]) -> None:
    """Copy a folder with its compiled modules, and without what Truss ignores."""
    from pathspec import GitIgnoreSpec

    ignored = GitIgnoreSpec.from_lines(patterns)

    def is_ignored(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        return ignored.match_file(f"{name}/" if path.is_dir() else name)

    def ignore(parent: str, names: list[str]) -> set[str]:
        return {name for name in names if is_ignored(Path(parent, name))}

    shutil.copytree(folder, destination, ignore=ignore, dirs_exist_ok=True)
    _copy_bytecode(folder, destination)


def _copy_bytecode(folder: Path, destination: Path) -> None:
    """Bring the modules compiled for this Python along, because compiling takes half a second.

    Python replaces such files and never modifies them, so links are safe and much cheaper.
    """
    for file in folder.rglob(f"{_BYTECODE}/*.{sys.implementation.cache_tag}.pyc"):
        target = destination / file.relative_to(folder)
        if target.parent.parent.is_dir():
            target.parent.mkdir(exist_ok=True)
            _link(file, target)


def _link(file: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of an earlier folder, possibly linked
    try:
        target.hardlink_to(file)
    except OSError:  # another file system or user
        shutil.copy2(file, target)


def _write_source(
    truss: Path, config: Path | None, settings: dict[str, Any], destination: Path
) -> list[tuple[Path, str]]:
    """Write the files that Truss reads; return the folders to place, each with its destination."""
    model = settings.get("model_module_dir", "model")
    if not (truss / model).is_dir():
        raise SettingsError(f"{truss} is not a Truss: it has no {model}/ folder.")
    shutil.copytree(truss / model, destination / model, ignore=_IGNORED)
    placed = []
    for name, place in (
        (settings.get("data_dir", "data"), "app/data"),
        (settings.get("bundled_packages_dir", "packages"), "packages"),
    ):
        if (truss / name).is_dir():
            (destination / name).mkdir(parents=True, exist_ok=True)
            placed.append((truss / name, place))
    base = truss if config is None else config.parent
    for name in settings.pop("external_package_dirs", None) or ():
        folder = base / str(name)
        if not folder.is_dir():
            raise SettingsError(f"external_package_dirs names {name!r}; {folder} is not a folder.")
        placed.append((folder, "packages"))
    if requirements := settings.get("requirements_file"):
        named = [folder / str(requirements) for folder in (base, truss)]
        file = next((each for each in named if each.is_file()), None)
        if file is None:
            raise SettingsError(f"requirements_file is {requirements!r}; that file does not exist.")
        shutil.copy(file, destination / requirements)
    (destination / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return placed
