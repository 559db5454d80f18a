"""The files of a Truss beside its config.yaml, from this checkout or from the installed wheel."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import trtllm_truss
from trtllm_truss.errors import SettingsError

PARTS = (
    "model",
    "data",
    "requirements.txt",
    "requirements-wheels.txt",
    ".truss_ignore",
    "LICENSE",
)
"""Copied from the root of a Truss; setup.py puts the same into the wheel."""

_SERVER = Path(trtllm_truss.__file__).resolve().parent
_IN_WHEEL = "truss_files"
_OF_WHEEL = Path(__file__).resolve().parents[1] / _IN_WHEEL
_NAME_LENGTH = 60
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info", ".*_cache")


def model_name(repository: str) -> str:
    """Derive a name from a repository that is safe as a folder and as `model_name`."""
    last = repository.rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9.]+", "-", last)[:_NAME_LENGTH].strip("-.")
    return name or "trtllm-truss"


def write_folder(output: Path, texts: Mapping[str, str], requirements: list[str]) -> None:
    """Write a Truss to a new or empty folder, all of it or nothing.

    Args:
        output: its folder.
        texts: additional files by name.
        requirements: lines to append to requirements.txt.

    Raises:
        SettingsError: `output` cannot be written or is no longer empty.
    """
    files = template()
    for source in (_SERVER, *(files / part for part in PARTS)):
        if output.resolve().is_relative_to(source):
            raise SettingsError(f"--output {output} is inside {source}; name a folder elsewhere.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as around:
            root = Path(around) / output.name
            root.mkdir()
            _fill(root, files, texts, requirements)
            root.replace(output)
    except OSError as error:
        raise SettingsError(
            f"--output {output} cannot be written ({error.strerror}); name a new folder where you "
            "may write."
        ) from error


def _fill(root: Path, files: Path, texts: Mapping[str, str], requirements: list[str]) -> None:
    for part in PARTS:
        source = files / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=_LEFT_OUT)
        else:
            shutil.copyfile(source, root / part)
    shutil.copytree(_SERVER, root / "packages" / _SERVER.name, ignore=_LEFT_OUT)
    if requirements:
        with (root / "requirements.txt").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in requirements))
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")


def template() -> Path:
    """Return the folder with `PARTS`: inside an installed wheel, or the Truss around the package.

    Raises:
        SettingsError: the installation is incomplete.
    """
    places = (_OF_WHEEL, _SERVER.parents[1])
    found = [place for place in places if all((place / part).exists() for part in PARTS)]
    if not found:
        raise SettingsError(
            f"this installation of trtllm-truss in {_SERVER.parent} lacks {', '.join(PARTS)}; "
            "install the wheel again, or run init from a checkout."
        )
    return found[0]
