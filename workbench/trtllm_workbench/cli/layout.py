"""Lay a Truss out on disk as in its container, from Truss's build context, without Docker."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import yaml

from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError

_BYTECODE = "__pycache__"
_IGNORED = shutil.ignore_patterns(_BYTECODE, "*.egg-info")


def lay_out(truss: Path, config: Path | None, root: Path) -> None:
    """Fill the empty folder `root` with the `/app` and `/packages` of the image.

    `config` replaces the Truss's config.yaml, as with `truss push --config`. Truss would copy
    packages and data four times; they are placed directly, without the files that it ignores.

    Raises:
        SettingsError: the folder is not a Truss, or Truss rejects its config.yaml.
    """
    from truss.base.constants import SERVER_CODE_DIR, SHARED_SERVING_AND_TRAINING_CODE_DIR
    from truss.base.errors import Error as TrussLibraryError
    from truss.contexts.image_builder.serving_image_builder import ServingImageBuilderContext
    from truss.contexts.local_loader.docker_build_emulator import DockerBuildEmulator

    source, context = root / "truss", root / "context"
    placed = _write_source(truss, config, source)
    try:
        ServingImageBuilderContext.run(source).prepare_image_build_dir(context)
    except (TrussLibraryError, ValueError) as error:
        raise SettingsError(f"Truss rejects the configuration: {error}") from None
    DockerBuildEmulator(context / "Dockerfile", context).run(root)
    for folder, place in placed:
        _copy(folder, root / place)
    _copy_bytecode(SERVER_CODE_DIR, root / "app")
    _copy_bytecode(SHARED_SERVING_AND_TRAINING_CODE_DIR, root / "app/_truss_shared")
    shutil.rmtree(source)
    shutil.rmtree(context)


def _copy(folder: Path, destination: Path) -> None:
    """Copy a folder with its compiled modules, and without what Truss ignores."""
    from pathspec import GitIgnoreSpec
    from truss.util.path import load_trussignore_patterns

    ignored = GitIgnoreSpec.from_lines(load_trussignore_patterns())

    def is_ignored(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        return ignored.match_file(f"{name}/" if path.is_dir() else name)

    def ignore(parent: str, names: list[str]) -> set[str]:
        return {name for name in names if is_ignored(Path(parent, name))}

    shutil.copytree(folder, destination, ignore=ignore, dirs_exist_ok=True)
    _copy_bytecode(folder, destination)


def _copy_bytecode(folder: Path, destination: Path) -> None:
    """Bring the modules compiled for this Python along; compiling them takes half a second.

    Python replaces such files and never writes into them, so links are safe, and are far cheaper.
    """
    for file in folder.rglob(f"{_BYTECODE}/*.{sys.implementation.cache_tag}.pyc"):
        target = destination / file.relative_to(folder)
        if target.parent.parent.is_dir():
            target.parent.mkdir(exist_ok=True)
            _link(file, target)


def _link(file: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of an earlier folder, perhaps linked
    try:
        target.hardlink_to(file)
    except OSError:  # another file system or user
        shutil.copy2(file, target)


def _write_source(truss: Path, config: Path | None, destination: Path) -> list[tuple[Path, str]]:
    """Write what Truss reads; return the folders to place, each with its place in the layout."""
    settings = read_config(truss, config)
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
        folder = base / name
        if not folder.is_dir():
            raise SettingsError(f"external_package_dirs names {name!r}; {folder} is not a folder.")
        placed.append((folder, "packages"))
    if requirements := settings.get("requirements_file"):
        file = next((f for f in (base / requirements, truss / requirements) if f.is_file()), None)
        if file is None:
            raise SettingsError(f"requirements_file is {requirements!r}; that file does not exist.")
        shutil.copy(file, destination / requirements)
    (destination / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return placed
