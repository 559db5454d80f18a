from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_triton import SCRIPTED_BACKEND, TEMPLATES, ScriptedTriton

from trtllm_truss.triton.command import server_command, server_environment
from trtllm_truss.triton.installation import assemble_backends, find_installation
from trtllm_truss.triton.process import ServerProcess
from trtllm_truss.triton.repository import render_repository

TritonFactory = Callable[..., ScriptedTriton]


@pytest.fixture(scope="session")
def make_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonFactory]:
    """Starts real Tritons with a scripted engine; all are stopped at the end of the session."""
    started: list[ServerProcess] = []

    def make(ready_s: float | None = 30.0, **script: Any) -> ScriptedTriton:
        run = tmp_path_factory.mktemp("triton")
        engine_dir = run / "engine"
        engine_dir.mkdir()
        (engine_dir / "script.json").write_text(json.dumps(script))
        override = run / "override"
        override.mkdir()
        (override / "tensorrtllm").symlink_to(SCRIPTED_BACKEND)
        installation = find_installation()
        backends = assemble_backends(
            installation, run / "backends", {"TRITON_BACKEND_DIRECTORY": str(override)}
        )
        repository = render_repository(
            TEMPLATES,
            run / "repository",
            engine_dir=engine_dir,
            backend="tensorrtllm",
            max_batch_size=64,
            parameters={},
        )
        process = ServerProcess(
            lambda launch: server_command(
                installation.executable,
                launch,
                repository=repository,
                backends=backends,
                exit_timeout_s=1,
            ),
            server_environment(os.environ, installation),
        )
        started.append(process)
        process.start()
        if ready_s is not None:
            process.wait_until_ready(ready_s)
        return ScriptedTriton(process, engine_dir)

    yield make
    for process in started:
        process.stop(3)


@pytest.fixture(scope="session")
def triton(make_triton: TritonFactory) -> ScriptedTriton:
    """One ready server for all tests that leave it alive."""
    return make_triton()
