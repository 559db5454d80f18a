"""Lay a Truss out on disk as in its container, from Truss's build context, without Docker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.errors import SettingsError

_BYTECODE = "__pycache__"
_IGNORED = shutil.ignore_patterns(_BYTECODE, "*.egg-info")


def read_config(truss: Path, config: Path | None) -> dict[str, Any]:
    """Read `config`, by default the Truss's config.yaml.

    Raises:
        SettingsError: the file does not exist or is not a YAML mapping.
    """
    file = config or truss / "config.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"{file} does not exist; name the Truss's folder with --truss or its configuration "
            "with --config."
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "unknown"
        raise SettingsError(f"{file} is not valid YAML: {error.problem} (line {line}).") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{file} is not a settings file; it must map keys to values.")
    return content


def lay_out(truss: Path, config: Path | None, root: Path) -> None:
    """Fill the empty folder `root` with the `/app` and `/packages` of the image.

    `config` replaces the Truss's config.yaml, as with `truss push --config`.

    Raises:
        SettingsError: the folder is not a Truss, or Truss rejects its config.yaml.
    """
    from truss.base.errors import Error as TrussLibraryError
    from truss.contexts.image_builder.serving_image_builder import ServingImageBuilderContext
    from truss.contexts.local_loader.docker_build_emulator import DockerBuildEmulator

    source = root / "truss"
    packages = _copy_truss(truss, config, source)
    context = root / "context"
    try:
        ServingImageBuilderContext.run(source).prepare_image_build_dir(context)
    except (TrussLibraryError, ValueError) as error:
        raise SettingsError(f"Truss rejects the configuration: {error}") from None
    DockerBuildEmulator(context / "Dockerfile", context).run(root)
    for folder in packages:
        _copy_bytecode(folder, root / "packages")
    shutil.rmtree(source)
    shutil.rmtree(context)


def _copy_bytecode(packages: Path, destination: Path) -> None:
    """Copy compiled modules, which Truss leaves out; compiling them takes half a second."""
    for folder in packages.rglob(_BYTECODE):
        target = destination / folder.relative_to(packages)
        if target.parent.is_dir():
            shutil.copytree(folder, target, dirs_exist_ok=True)


def _copy_truss(truss: Path, config: Path | None, destination: Path) -> list[Path]:
    """Copy the folders that reach the image; return those of packages."""
    settings = read_config(truss, config)
    packages = settings.get("bundled_packages_dir", "packages")
    parts = {
        settings.get("model_module_dir", "model"): True,
        settings.get("data_dir", "data"): False,
        packages: False,
    }
    for name, required in parts.items():
        folder = truss / name
        if folder.is_dir():
            shutil.copytree(folder, destination / name, ignore=_IGNORED)
        elif required:
            raise SettingsError(f"{truss} is not a Truss: it has no {name}/ folder.")
    copied = [truss / packages]
    base = truss if config is None else config.parent
    for name in settings.pop("external_package_dirs", None) or ():
        folder = base / name
        if not folder.is_dir():
            raise SettingsError(f"external_package_dirs names {name!r}; {folder} is not a folder.")
        shutil.copytree(folder, destination / packages, ignore=_IGNORED, dirs_exist_ok=True)
        copied.append(folder)
    if requirements := settings.get("requirements_file"):
        file = next((f for f in (base / requirements, truss / requirements) if f.is_file()), None)
        if file is None:
            raise SettingsError(f"requirements_file is {requirements!r}; that file does not exist.")
        shutil.copy(file, destination / requirements)
    _anchor_folders(settings)
    (destination / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return copied


def _anchor_folders(settings: dict[str, Any]) -> None:
    """Make relative repository folders absolute: the server runs in another folder."""
    metadata = settings.get("model_metadata")
    if not isinstance(metadata, dict):
        return
    _anchor(metadata, "engine_repository")
    _anchor(metadata, "tokenizer_repository")
    if isinstance(build := metadata.get("build"), dict):
        _anchor(build, "checkpoint_repository")


def _anchor(section: dict[str, Any], name: str) -> None:
    value = section.get(name)
    if isinstance(value, str) and value.startswith(("./", "../")):
        section[name] = str(Path(value).resolve())
