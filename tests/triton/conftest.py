from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import TEMPLATES
from tests.support.scripted_triton import SCRIPTED_BACKEND, ScriptedTriton
from tests.support.standin_engine import STANDIN_BACKENDS, write_engine
from tests.support.waiting import PATIENCE_S

from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.triton.model_repository.repository import render_repository
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.installation import assemble_backends, find_installation
from trtllm_truss.triton.server.process import ServerProcess

TritonFactory = Callable[..., ScriptedTriton]
StandinFactory = Callable[..., ServerProcess]


def new_server(
    run: Path, engine_dir: Path, override: Path, world_size: int = 1, **options: Any
) -> ServerProcess:
    """Real Triton on the production config, with the backends of one folder."""
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
        tensorrt_llm_version=PINNED_VERSION,
    )
    command = launcher(
        installation,
        repository=repository,
        backends=backends,
        world_size=world_size,
        exit_timeout_s=1,
    )
    return ServerProcess(command, server_environment(os.environ, installation), **options)


@pytest.fixture(scope="session")
def make_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonFactory]:
    """Starts real Tritons with a scripted engine; all are stopped at the end of the session."""
    started: list[ServerProcess] = []

    def make(ready_s: float | None = PATIENCE_S, **script: Any) -> ScriptedTriton:
        run = tmp_path_factory.mktemp("triton")
        engine_dir = run / "engine"
        engine_dir.mkdir()
        (engine_dir / "script.json").write_text(json.dumps(script))
        override = run / "override"
        override.mkdir()
        (override / "tensorrtllm").symlink_to(SCRIPTED_BACKEND)
        process = new_server(run, engine_dir, override)
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


@pytest.fixture
def make_standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinFactory]:
    """Starts real Tritons with the stand-in, one rank per GPU; stops them after the test.

    `world_size` is that of the job, where it shall not be the engine's.
    """
    started: list[ServerProcess] = []

    def make(
        *,
        tp: int = 1,
        pp: int = 1,
        world_size: int | None = None,
        ready_s: float | None = PATIENCE_S,
        spoil: Callable[[Path], None] = lambda _: None,
        on_line: Callable[[str], None] | None = None,
        **engine: Any,
    ) -> ServerProcess:
        run = tmp_path_factory.mktemp("standin")
        folder = write_engine(run / "engine", tp=tp, pp=pp, **engine)
        spoil(folder)
        process = new_server(run, folder, STANDIN_BACKENDS, world_size or tp * pp, on_line=on_line)
        started.append(process)
        process.start()
        if ready_s is not None:
            process.wait_until_ready(ready_s)
        return process

    yield make
    for process in started:
        process.stop(0.2)
