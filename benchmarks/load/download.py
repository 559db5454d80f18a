"""`python -m benchmarks.load.download SIDE REPOSITORY`: fetch it, print seconds and CPU seconds."""

from __future__ import annotations

import sys
import time


def main() -> None:
    """Fetch by `trtllm-truss` or `snapshot_download`; imports do not count."""
    from huggingface_hub import snapshot_download

    from trtllm_truss.artifacts.open_repository import open_repository

    side, repository = sys.argv[1:]
    started, cpu_s = time.perf_counter(), time.process_time()
    if side == "trtllm-truss":
        source = open_repository(repository, None, setting="engine_repository", token=None)
        source.fetch(source.listing().sizes)
    else:
        snapshot_download(repository, token=False)
    sys.stdout.write(f"{time.perf_counter() - started} {time.process_time() - cpu_s}\n")


if __name__ == "__main__":
    main()
