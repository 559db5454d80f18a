"""The files of a Truss beside its config.yaml, from this checkout or from the installed wheel.

An image installs wheels as archives, without the packages that their code would pull in.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trtllm_truss
from trtllm_truss.artifacts.open_repository import PACKAGE
from trtllm_truss.artifacts.s3 import S3
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


_LOCK = "requirements-wheels.txt"
_WHEEL = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")


def wheels(repositories: Sequence[str], of_engine: Sequence[str] = ()) -> list[str]:
    """Return the wheels that a Truss needs, as `name==version`.

    Raises:
        SettingsError: the package of a `package://…` has no usable name or version.
    """
    names = [name.removeprefix(PACKAGE) for name in repositories if name.startswith(PACKAGE)]
    pins = [pin for pin in locked() if pin.partition("==")[0] in of_engine]
    return list(dict.fromkeys([*pins, *map(_wheel_of, dict.fromkeys(names))]))


def build_commands(pins: Sequence[str]) -> list[str]:
    """Return the commands of the image's build that install wheels.

    pip takes hashes in requirement files only, and a Truss has no file of its own at that point of
    the build whatever config.yaml it is pushed with: the file is standard input.
    """
    lock = locked()
    lines = " ".join(f'"{pin} {lock[pin]}"' for pin in pins if pin in lock)
    others = " ".join(unlocked(pins))
    install = "pip install --no-deps"
    return [
        *([rf'printf "%s\n" {lines} | {install} --require-hashes -r /dev/stdin'] if lines else []),
        *([f"{install} {others}"] if others else []),
    ]


def unlocked(pins: Sequence[str]) -> list[str]:
    """Return the wheels whose hashes are not known: nothing that is installed has them."""
    return [pin for pin in pins if pin not in locked()]


def locked() -> Mapping[str, str]:
    """Return pip's options with the hashes of each wheel of the lock file."""
    text = (template() / _LOCK).read_text(encoding="utf-8").replace("\\\n", "")
    rows = [line.split() for line in text.splitlines() if line.strip()]
    return {pin: " ".join(hashes) for pin, *hashes in rows}


def _wheel_of(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package, [])
    wheel = f"{names[0]}=={importlib.metadata.version(names[0])}" if names else ""
    if not _WHEEL.fullmatch(wheel):
        raise SettingsError(
            f"{PACKAGE}{package} comes from no installed wheel, so the image cannot install it; "
            "install it with pip first, or name a repository."
        )
    return wheel


S3_REQUIREMENT = "boto3>=1.36"


SERVER_REQUIREMENTS = ("uvicorn>=0.24.0,<1", "uvloop>=0.19.0", "httptools>=0.6,<1")
"""Of our own server. The first two ranges are those of Truss's, whose packages its image lacks."""


def extra_requirements(
    repositories: Sequence[str], of_engine: Sequence[str], *, own_server: bool = False
) -> list[str]:
    """Return the lines to add to requirements.txt."""
    uses_s3 = any(repository.startswith(S3) for repository in repositories)
    of_server = SERVER_REQUIREMENTS if own_server else ()
    return [*of_engine, *([S3_REQUIREMENT] if uses_s3 else []), *of_server]


def consent_text(metadata: Mapping[str, Any], given: str) -> str:
    """Return what `trust_remote_code` allows, and who gave it.

    Args:
        metadata: keys of `model_metadata`.
        given: by what, such as "by --trust-remote-code".
    """
    build = metadata.get("build") or {}
    names = (
        metadata.get("engine_repository"),
        build.get("checkpoint_repository"),
        metadata.get("tokenizer_repository"),
    )
    authors = " and ".join(dict.fromkeys(str(name) for name in names if name))
    pickles = " A build also loads pickled weights, which run code as well." if build else ""
    return (
        f"trust_remote_code was set {given}: Python code of {authors} runs with all rights and "
        f"secrets of the server.{pickles} Remove it unless you trust the authors."
    )
