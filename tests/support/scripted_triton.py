"""Real Triton with the production config whose engine plays scripts; see backends/scripted."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S

from trtllm_truss.processes.process_guard import _env_makers, marked_processes
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.request import EngineChunk, EngineRequest
from trtllm_truss.triton.server.process import ServerProcess

SCRIPTED_BACKEND = Path(__file__).parent / "scripted"


@dataclass
class ScriptedTriton:
    """Real Triton with the production config, whose engine plays scripts."""

    process: ServerProcess
    engine_dir: Path

    def script(self, request_id: str, **answer: Any) -> None:
        """Set the script of one request; keys: see the backend."""
        (self.engine_dir / f"{request_id}.json").write_text(json.dumps(answer))

    def seen(self, request_id: str, event: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Waits for an event of one request, as the engine noted it."""
        deadline = time.monotonic() + within_s
        log = self.engine_dir / "seen.jsonl"
        while time.monotonic() < deadline:
            for line in log.read_text().splitlines() if log.exists() else ():
                note: dict[str, Any] = json.loads(line)
                if (note["id"], note["event"]) == (request_id, event):
                    return note
            time.sleep(0.01)
        raise AssertionError(f"the engine noted no {event!r} of {request_id}")


def assert_nothing_left(run_id: str, shm_prefix: str, within_s: float = PATIENCE_S) -> None:
    """Fails unless the run's processes, shared memory and folder in /tmp are gone in time."""
    deadline = time.monotonic() + within_s
    while True:
        left = [
            *marked_processes(run_id),
            *(p for p in Path("/dev/shm").iterdir() if p.name.startswith(shm_prefix)),
            *left_alone([Path(f"/tmp/python_env_{run_id}")]),
        ]
        if not left:
            return
        assert time.monotonic() < deadline, f"left over: {left}"
        time.sleep(0.02)


def left_alone(folders: Iterable[Path]) -> list[Path]:
    """Those folders of the Python backend that no process is alive to have made.

    A Triton of another test, or of other people, that began in the same second keeps them.
    """
    there = {folder: folder.lstat().st_ctime for folder in folders if folder.exists()}
    makers = _env_makers().values() if there else []
    return [
        folder
        for folder, made_s in there.items()
        if not any(begin_s < made_s < end_s for begin_s, end_s in makers)
    ]


async def chunks_of(client: TritonClient, request: EngineRequest) -> AsyncIterator[EngineChunk]:
    """Yield all chunks of one request."""
    async with client.answer(request) as answer:
        while True:
            chunk = await answer.next()
            yield chunk
            if chunk.final:
                return
