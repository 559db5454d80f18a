"""Fetch one repository and print the digests of its files; tests kill this process.

`RANGE_BYTES` in its environment is the size of a range.
"""

from __future__ import annotations

import hashlib
import os
import sys

from trtllm_truss.artifacts import transfer
from trtllm_truss.artifacts.open_repository import open_repository


def main() -> None:
    transfer.RANGE_BYTES = int(os.environ.get("RANGE_BYTES", transfer.RANGE_BYTES))
    repository, *paths = sys.argv[1:]
    source = open_repository(repository, None, setting="engine_repository", token=None)
    folder = source.fetch(paths)
    for path in paths:
        digest = hashlib.sha256((folder / path).read_bytes()).hexdigest()
        sys.stdout.write(f"{path} {digest}\n")


if __name__ == "__main__":
    main()
