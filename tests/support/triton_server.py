"""Real Triton with the production config and the fake `tensorrtllm` engine."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.triton import FAKE_ENGINE, script_request, write_engine
from tests.support.paths import TEMPLATES
from tests.support.waiting import PATIENCE_S

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.machine.runtime import assemble_backends, find_installation
from trtllm_truss.processes.process_guard import _env_makers, all_pids, marked_processes
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest
from trtllm_truss.triton.model_repository import render_repository
from trtllm_truss.triton.server.command import Launch, launcher, server_environment
from trtllm_truss.triton.server.process import ServerProcess

_FINALIZING = (sys.executable, str(Path(__file__).with_name("mpi_rank.py")))

StartTriton = Callable[..., "FakeEngineServer"]


class FakeEngineServer(ServerProcess):
    """Real Triton with a fake engine; keeps every line of the log.

    Attributes:
        engine_dir: the engine folder.
        lines: the log so far.
    """

    def __init__(
        self,
        run: Path,
        engine_dir: Path,
        world_size: int,
        *,
        finalizes: bool = False,
        version: str = PINNED_VERSION,
        instances: int = 1,
    ) -> None:
        installation = find_installation()
        repository = render_repository(
            TEMPLATES,
            run / "repository",
            ModelConfig(engine_dir, {}, inputs=(), outputs=()),
            backend="tensorrtllm",
            max_batch_size=64,
            tensorrt_llm_version=version,
            instance_count=instances,
        )
        start = launcher(
            installation,
            repository=repository,
            backends=assemble_backends(installation, run / "backends", FAKE_ENGINE),
            world_size=world_size,
        )
        server = str(installation.executable)

        def command(launch: Launch) -> list[str]:
            ranks = [(*_FINALIZING, word) if word == server else (word,) for word in start(launch)]
            return [word for words in ranks for word in words]

        environment = server_environment(os.environ, installation)
        super().__init__(command if finalizes else start, environment, on_line=self._keep)
        self.engine_dir = engine_dir
        self.lines: list[str] = []
        self._news = threading.Condition()

    def script(self, request_id: str, **behaviour: object) -> None:
        """Set the behaviour of one request; for the keys see the backend."""
        script_request(self.engine_dir, request_id, **behaviour)

    def wait_for_line(self, pattern: str, within_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait for a match in the log and return the first one."""
        with self._news:
            found = self._news.wait_for(lambda: self._search(pattern), within_s)
        assert found is not None, f"no line matches {pattern!r}"
        return found

    def wait_for_request(self, request_id: str) -> dict[str, Any]:
        """Return inputs and outputs of a request from the log of an engine with `log_requests`."""
        note: dict[str, Any] = json.loads(
            self.wait_for_line(rf"\] request id={request_id} (.*)")[1]
        )
        return note

    def wait_for_cancel(self, request_id: str, within_s: float = PATIENCE_S) -> int:
        """Wait until the engine drops a request; return its number of tokens."""
        return int(self.wait_for_line(rf"\] stopped id={request_id} after=(\d+)", within_s)[1])

    def _keep(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def _search(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in self.lines if (found := re.search(pattern, line))), None)


@contextmanager
def triton_servers(folders: pytest.TempPathFactory, stop_s: float = 0.2) -> Iterator[StartTriton]:
    """Yield a function that starts servers; stop all of them at the end.

    The function takes the arguments of `write_engine`, and

        world_size: ranks of the job, if not those of the engine.
        ready_s: limit for the wait until the server is ready; None does not wait.
        finalizes: ranks call `MPI_Finalize` at their end, as with TensorRT-LLM.
        instances: of the model.
        spoil: changes the engine folder before the start.
    """
    started: list[FakeEngineServer] = []

    def start(
        *,
        tp: int = 1,
        pp: int = 1,
        world_size: int | None = None,
        ready_s: float | None = PATIENCE_S,
        finalizes: bool = False,
        spoil: Callable[[Path], None] = lambda _: None,
        version: str = PINNED_VERSION,
        instances: int = 1,
        **engine: Any,
    ) -> FakeEngineServer:
        run = folders.mktemp("triton")
        folder = write_engine(run / "engine", tp=tp, pp=pp, version=version, **engine)
        spoil(folder)
        ranks = world_size or tp * pp
        server = FakeEngineServer(
            run, folder, ranks, finalizes=finalizes, version=version, instances=instances
        )
        started.append(server)
        server.start()
        if ready_s is not None:
            server.wait_until_ready(ready_s)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.stop(stop_s)


def assert_nothing_left(run_id: str, shm_prefix: str, within_s: float = PATIENCE_S) -> None:
    """Fail unless the run's processes and shared memory are gone in time, and its folder in /tmp.

    The folder has `PATIENCE_S`: a guard spares it while a Triton lives that started in the same
    second, and the guard of that Triton removes it.
    """
    began_s = time.monotonic()
    while True:
        left = [
            *marked_processes(run_id),
            *(p for p in Path("/dev/shm").iterdir() if p.name.startswith(shm_prefix)),
        ]
        folder = left_alone([Path(f"/tmp/python_env_{run_id}")])
        if not left and not folder:
            return
        limit_s = within_s if left else max(within_s, PATIENCE_S)
        assert time.monotonic() - began_s < limit_s, f"left over: {left + folder}"
        time.sleep(0.02)


def left_alone(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of the Python backend whose creator is dead.

    Folders are skipped if a living Triton of another test or user started in the same second.
    """
    there = changed_s(folders)
    makers = _env_makers(all_pids()).values() if there else []
    return [
        folder
        for folder, made_s in there.items()
        if not any(begin_s < made_s < end_s for begin_s, end_s in makers)
    ]


def changed_s(paths: Iterable[Path]) -> dict[Path, float]:
    """Return when each path last changed; without those that are gone, even since a moment."""
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = path.lstat().st_ctime
    return found


async def chunks_of(client: TritonClient, request: EngineRequest) -> AsyncIterator[EngineChunk]:
    """Yield the chunks of one request as they arrive."""
    async with client.answer(request) as answer:
        while True:
            chunk = await answer.next()
            yield chunk
            if chunk.final:
                return
