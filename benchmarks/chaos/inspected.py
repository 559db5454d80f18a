"""A server whose log, files and shared memory are inspected after it exits."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.result import CaseResult
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import truss_server

_UNHANDLED = re.compile(r"(unhandled|unforeseen) (error|exception)|Traceback")


@contextmanager
def serve_and_inspect(
    result: CaseResult, config: Path, log: Path, backends: Path | None = None
) -> Iterator[Target]:
    """Serve one configuration during the block.

    Args:
        result: receives a fault for a traceback in the log, and for anything left behind.
        config: a config.yaml.
        log: receives the server's log.
        backends: for `TRITON_BACKEND_DIRECTORY`.
    """
    with tempfile.TemporaryDirectory(prefix="inspected-") as temporary:
        with serve(config, backends, log=log, TMPDIR=temporary) as truss:
            segments = f"trtllm_truss_{truss_server(truss.pid)}_*"
            yield truss
        left_behind = [*Path(temporary).iterdir(), *Path("/dev/shm").glob(segments)]
    if left_behind:
        result.fault(f"left behind: {', '.join(map(str, left_behind))}.")
    lines = log.read_text(encoding="utf-8", errors="replace")
    if unhandled := _UNHANDLED.search(lines):
        start = lines.rfind("\n", 0, unhandled.start()) + 1
        result.fault(f"the log has: {lines[start : start + 300]!r}.")
