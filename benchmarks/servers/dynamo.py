"""Run Dynamo's frontend and workers: files for discovery, TCP on loopback, no daemons."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.paths import ROOT
from benchmarks.servers.usage import descendants
from trtllm_truss.triton.server.ports import unused_ports

PYTHON = ROOT / ".venv-dynamo/bin/python"
MODEL = "smollm2"
_PATIENCE_S = 240.0


class Fleet:
    """A frontend and its workers.

    Args:
        folder: for logs, discovery and files of the model.
        router_mode: as in the frontend's option. By default its router refuses an id that it knows.
        variables: added to the environment of all.
    """

    def __init__(self, folder: Path, *, router_mode: str = "kv", **variables: str) -> None:
        self._folder = folder
        (self.port,) = unused_ports(1)
        self._environment = {
            **os.environ,
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "store"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            # Without it the status of an error is 200, and the error an event.
            "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS": "300",
            # Without it an adapter's requests also go to workers that do not have it.
            "DYN_LORA_ENABLED": "true",
            "DYN_ROUTER_USE_KV_EVENTS": "false",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(folder),
            "TMPDIR": str(folder),  # the frontend leaves files there
            **variables,
        }
        self.workers: list[subprocess.Popen[bytes]] = []
        self.frontend = self._start(
            "frontend",
            *("-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port)),
            *("--enable-anthropic-api", "--migration-limit", "3", "--router-mode", router_mode),
        )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)

    def add_worker(self, config: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a worker of ours with options, and variables in its environment."""
        return self._add(
            *("trtllm_truss", "dynamo", "--truss", str(ROOT)),
            *("--config", str(config), "--name", MODEL, *options),
            **variables,
        )

    def add_mocker(self, model: Path) -> subprocess.Popen[bytes]:
        """Start Dynamo's mocker with the tokenizer in a folder; its steps take no time."""
        return self._add(
            *("dynamo.mocker", "--model-path", str(model), "--model-name", MODEL),
            *("--endpoint", "dyn://dynamo.backend.generate", "--speedup-ratio", "0"),
            *("--max-num-seqs", "256", "--num-gpu-blocks-override", "20000"),
            *("--kv-bytes-per-token", "23040"),  # SmolLM2's; otherwise it imports transformers
            *("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"),
        )

    def _add(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        name = f"worker{len(self.workers)}"
        self.workers.append(self._start(name, "-m", *arguments, **variables))
        return self.workers[-1]

    def wait_for(self, count: int) -> None:
        """Wait until the frontend knows this many workers, and serves their model."""
        deadline = time.monotonic() + _PATIENCE_S
        while len(self.instances()) != count or (count and MODEL not in self._models()):
            assert time.monotonic() < deadline, self.log
            assert count == 0 or self.alive, self.log
            time.sleep(0.2)

    @property
    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self.workers if worker.poll() is None]

    def instances(self) -> list[Any]:
        with contextlib.suppress(httpx.HTTPError):
            found: list[Any] = self.client.get("/health").json().get("instances", [])
            return [each for each in found if each["endpoint"] == "generate"]
        return []

    def _models(self) -> str:
        return self.client.get("/v1/models").text

    def triton_of(self, worker: subprocess.Popen[bytes]) -> int:
        (triton,) = (
            pid
            for pid in descendants(worker.pid)
            if Path(f"/proc/{pid}/comm").read_text().startswith("tritonserver")
        )
        return triton

    @property
    def log(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.log")))

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        is_frontend = process is self.frontend
        name = "frontend" if is_frontend else f"worker{self.workers.index(process)}"
        return (self._folder / f"{name}.log").read_text()

    def close(self) -> None:
        self.client.close()
        running = [*self.workers, self.frontend]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if process.poll() is None:
                process.kill()
                process.wait()

    def _start(self, name: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}.log", "ab") as log:  # noqa: PTH123
            return subprocess.Popen(
                [str(PYTHON), *arguments],
                env={**self._environment, **variables},
                stdout=log,
                stderr=log,
            )
