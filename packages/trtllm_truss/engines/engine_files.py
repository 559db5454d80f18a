"""Names, limits and defects of the files in an engine's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from trtllm_truss.errors import ArtifactError

CONFIG_FILE = "config.json"
WEIGHTS_SUFFIX = ".safetensors"
MAX_LAYERS = 4096
MAX_VOCABULARY = 1 << 22
"""Upper limits for numbers that determine the length of a list."""

PluginFlag = Annotated[bool, BeforeValidator(lambda value: value is not False)]
"""True for a built-in plugin, whose value is then a type such as ``float16``."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointers(folder: Path, sizes: Mapping[str, int], suffixes: tuple[str, ...]) -> None:
    """Raise ArtifactError if a file in the top folder is a Git LFS pointer."""
    for name in sizes:
        if "/" not in name and name.endswith(suffixes):
            with (folder / name).open("rb") as file:
                if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                    raise ArtifactError(
                        f"{name} is a Git LFS pointer; run `git lfs pull` in the repository."
                    )
