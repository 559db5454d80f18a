"""Fetch to a small disk and fill the rest of it halfway through.

Print `full` then; the server sends the other half. The file on the disk has all of the first half
before: what was written of it later would end the download before the server sends the other one.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from pathlib import Path

from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.errors import ArtifactError

_BLOCK = bytes(4096)


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a small file that has just got its name
        return 0


def fill(disk: Path, held_bytes: int) -> None:
    while not any(size(path) >= held_bytes for path in disk.rglob("*.incomplete")):
        time.sleep(0.005)
    other = (disk / "of-someone-else").open("wb", buffering=0)
    with other, contextlib.suppress(OSError):
        while other.write(_BLOCK):
            pass
    print("full", flush=True)  # noqa: T201


def main() -> None:
    disk, held_bytes = Path(sys.argv[1]), int(sys.argv[2])
    source = open_repository("org/engine", None, setting="engine_repository", token=None)
    paths = source.listing().sizes
    other = threading.Thread(target=fill, args=(disk, held_bytes), daemon=True)
    other.start()
    try:
        source.fetch(paths)
    except ArtifactError as error:
        other.join()
        left = [path.stat().st_size for path in disk.rglob("*.incomplete")]
        print(error.message, shutil.disk_usage(disk).free, sum(left), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
