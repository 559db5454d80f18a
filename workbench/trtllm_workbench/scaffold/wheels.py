"""Wheels that an image installs as archives, without the packages that their code would pull in."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence

from trtllm_truss.artifacts.local import PACKAGE
from trtllm_truss.errors import SettingsError
from trtllm_workbench.scaffold.folder import template

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
