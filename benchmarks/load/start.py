"""`python -m benchmarks.load.start CONFIG [--without-read-ahead]`: start once, print seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.paths import ROOT


def main() -> None:
    """Start the service of a config.yaml and stop it; imports do not count."""
    from trtllm_truss.configuration import load_configuration, read_config
    from trtllm_truss.serving.read_ahead import ReadAhead
    from trtllm_truss.serving.service import Service
    from trtllm_truss.settings.loading import read_environment

    settings, _ = load_configuration(read_config(ROOT, Path(sys.argv[1])))
    if "--without-read-ahead" in sys.argv:
        ReadAhead.begin = lambda self, files: None  # type: ignore[method-assign]
    service = Service(settings, read_environment(), ROOT / "data")
    started, cpu_s = time.perf_counter(), time.process_time()
    try:
        service.start()
        sys.stdout.write(f"{time.perf_counter() - started} {time.process_time() - cpu_s}\n")
    finally:
        service.stop()


if __name__ == "__main__":
    main()
