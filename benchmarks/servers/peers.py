"""Run llama.cpp's server as a process, in a separate environment (`make peers`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.paths import ROOT, smollm2_file
from benchmarks.servers.target import Target
from trtllm_truss.triton.server.ports import unused_ports

_PYTHON = ROOT / ".venv-peers/bin/python"
_PROGRAM = Path(__file__).with_name("llama_server.py")
_END_LIMIT_S = 20


@contextmanager
def serve_llama(slots: int, context_tokens: int, threads: int) -> Iterator[Target]:
    """Serve the example's model by llama.cpp during the block.

    Args:
        slots: concurrent requests; others wait.
        context_tokens: size of the KV cache, for all slots together.
        threads: threads per step.

    Raises:
        RuntimeError: `make peers` has not been run, or the server did not start.
    """
    if not _PYTHON.exists():
        raise RuntimeError("llama.cpp's server is not installed; run `make peers`")
    (port,) = unused_ports(1)
    numbers = map(str, (port, slots, context_tokens, threads))
    process = subprocess.Popen(
        [str(_PYTHON), str(_PROGRAM), str(smollm2_file()), *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Its threads spin between steps by default, which costs it most on shared cores.
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            if not process.stdout.readline():
                raise RuntimeError("llama.cpp's server did not start")
            yield Target(process.pid, port, "/v1/completions")
        finally:
            process.stdin.close()
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
