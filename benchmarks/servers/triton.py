"""Triton alone, with the model repository of `render`, HTTP and gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.paths import ROOT
from benchmarks.servers.target import Target
from trtllm_truss.machine.runtime import assemble_backends, find_installation
from trtllm_truss.triton.server.command import Launch, server_environment
from trtllm_truss.triton.server.process import ServerProcess

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 0.0  # no request runs any more


@contextmanager
def triton(config: Path, backends: Path, model: str) -> Iterator[Target]:
    """Run Triton during the block.

    Args:
        config: a config.yaml.
        backends: for `TRITON_BACKEND_DIRECTORY`.
        model: the model of the target's `generate_stream` path.

    Raises:
        RuntimeError: the model repository cannot be rendered.
        TritonError: the server did not become ready.
    """
    installation = find_installation()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
        folder = Path(name)
        repository = _render(config, folder / "repository")
        assembled = assemble_backends(
            installation, folder / "backends", {"TRITON_BACKEND_DIRECTORY": str(backends)}
        )

        def command(launch: Launch) -> list[str]:
            ports = launch.ports
            return [
                *(str(installation.executable), f"--id={launch.run_id}"),
                *(f"--model-repository={repository}", f"--backend-directory={assembled}"),
                *("--grpc-address=127.0.0.1", f"--grpc-port={ports.grpc}"),
                *("--http-address=127.0.0.1", f"--http-port={ports.http}"),
                *("--metrics-address=127.0.0.1", f"--metrics-port={ports.metrics}"),
                "--disable-auto-complete-config",
                f"--backend-config=python,shm-region-prefix-name={launch.shm_prefix}0_",
            ]

        environment = server_environment(os.environ, installation)
        server = ServerProcess(command, environment, http_port=0)
        try:
            started = time.monotonic()
            server.start()
            server.wait_until_ready(_START_LIMIT_S)
            started_in_s = time.monotonic() - started
            assert server.launch is not None
            assert server.pid is not None
            ports = server.launch.ports
            assert ports.http is not None
            path = f"/v2/models/{model}/generate_stream"
            yield Target(server.pid, ports.http, path, ports.grpc, started_in_s)
        finally:
            server.stop(_STOP_LIMIT_S)


def _render(config: Path, destination: Path) -> Path:
    command = [sys.executable, "-m", "trtllm_truss", "render", "--truss", str(ROOT)]
    command += ["--config", str(config), "--output", str(destination)]
    rendering = subprocess.run(command, capture_output=True, text=True, check=False)
    if rendering.returncode:
        raise RuntimeError(f"the model repository cannot be rendered: {rendering.stderr}")
    return destination
