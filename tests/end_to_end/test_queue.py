"""Requests wait in the server, where a client that leaves costs the engine nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchmarks.cases.setup import set_up
from benchmarks.engine.backend import find_compiler
from benchmarks.options import Options
from tests.end_to_end.test_disconnect import await_text, open_request
from tests.fakes.tensorrt_llm import COUNTING, serve_checkpoint, write_checkpoint
from tests.fakes.triton import serve_engine, write_engine
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import Served
from tests.support.waiting import PATIENCE_S, settles

BATCH, WAITING = 4, 200
STEP_MS = 50
LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True}
"""95 s or more, which fit into the context of each engine."""
SERVING = {"queue_timeout_s": PATIENCE_S}


def compiled(folder: Path, prompts: Path) -> Served:
    if find_compiler() is None:
        pytest.skip("there is no C compiler")
    engine = {"step_ms": STEP_MS, "prefilled": prompts}
    bench = set_up(Options(folder), "queue", max_batch_size=BATCH, engine=engine, **SERVING)
    return Served(bench.config, {"TRITON_BACKEND_DIRECTORY": str(bench.backend.folder)})


def in_python(folder: Path, prompts: Path) -> Served:
    limits = {"max_batch_size": BATCH}
    engine = write_engine(folder / "engine", step_ms=STEP_MS, prefilled=prompts, limits=limits)
    return serve_engine(engine, serving=SERVING)


def checkpoint(version: str, folder: Path, prompts: Path) -> Served:
    model = write_checkpoint(
        folder / "model", smollm2_file(), step_ms=STEP_MS, prefilled=str(prompts)
    )
    runtime = {"llm_args": {"max_batch_size": BATCH}}
    return serve_checkpoint(model, version, COUNTING, serving=SERVING, runtime=runtime)


@pytest.fixture(
    params=[
        pytest.param(compiled, id="compiled stand-in"),
        pytest.param(in_python, id="fake of the C++ backend", marks=pytest.mark.thorough),
        pytest.param(functools.partial(checkpoint, "1.2.1"), id="LLM API 1.2.1"),
    ]
)
def served(request: pytest.FixtureRequest, tmp_path: Path, prompts: Path) -> Iterator[Served]:
    start: Callable[[Path, Path], Served] = request.param
    with ended(start(tmp_path, prompts)) as server:
        yield server


@contextmanager
def ended(server: Served) -> Iterator[Served]:
    try:
        yield server.wait_until_ready()
        assert server.end() == 0, server.log
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file with a byte for each prompt that the engine has processed."""
    return tmp_path / "prefilled"


def test_no_prompt_of_a_client_that_leaves_the_queue_is_processed(
    served: Served, prompts: Path
) -> None:
    before = prompts.stat().st_size  # of the start
    with ExitStack() as running:
        for _ in range(BATCH):
            await_text(running.enter_context(open_request(served, LONG)))
        with ExitStack() as waiting:
            for _ in range(WAITING):
                waiting.enter_context(open_request(served, LONG))
            assert settles(lambda: served.metric("requests_waiting") == WAITING)
        assert settles(lambda: served.metric("requests_in_flight") == BATCH)
        assert served.running() == BATCH, "the engine must have been full all the time"
    assert served.post({"prompt": "And then", "max_tokens": 2}).status_code == 200
    assert prompts.stat().st_size - before == BATCH + 1


@pytest.mark.parametrize("copies", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_the_copy_that_runs_an_abandoned_request_stops_it(tmp_path: Path, copies: int) -> None:
    """Triton hands `stop` to the other copy first; a cancelled call has no effect here."""
    engine = write_engine(tmp_path / "engine", step_ms=10, only_stop=1)
    with ended(serve_engine(engine, runtime={"instance_count": copies})) as served:
        for number in range(1, 4):
            with open_request(served, LONG) as connection:
                await_text(connection)
            assert settles(lambda number=number: len(served.cancelled()) == number)  # type: ignore[misc]
        assert max(served.cancelled()) < LONG["max_tokens"]
