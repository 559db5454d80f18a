"""A worker that dies, hangs or fails: requests fail with an error, and the server exits."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.token_model.backend_requests import Caller
from tests.engines.checkpoint.llm_api.conftest import LLM_ARGS, StartEngine, keep
from tests.engines.checkpoint.llm_api.test_engine import answer, begin
from tests.fakes.tensorrt_llm import COUNTING, copy_checkpoint
from tests.support.waiting import PATIENCE_S, settles

from trtllm_backends.llm_api import engine as llm_engine
from trtllm_backends.llm_api.engine import EngineFailed, LlmEngine
from trtllm_truss.processes.process_guard import is_alive

STREAMS = 32


@pytest.fixture(scope="module", autouse=True)
def _counting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in COUNTING.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def died() -> threading.Event:
    return threading.Event()


@pytest.fixture
def start(
    start_engine: StartEngine, checkpoint: Path, tmp_path: Path, died: threading.Event
) -> Iterator[StartEngine]:
    """Start an engine whose worker misbehaves."""
    started: list[LlmEngine] = []

    def begin_engine(hang_timeout_s: float = 10 * PATIENCE_S, **behaviour: object):
        folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint", **behaviour)
        engine = start_engine(
            folder,
            on_death=died.set,
            hang_timeout_s=hang_timeout_s,
            canary_interval_s=10 * PATIENCE_S,
        )
        started.append(engine)
        return engine

    yield begin_engine
    for engine in started:
        pids = engine._workers.pids
        if not engine.close():
            keep(engine._llm)
        assert settles(lambda: not any(is_alive(pid) for pid in pids))  # noqa: B023


def streams(engine: LlmEngine) -> list[Caller]:
    callers = [begin(engine, 1500) for _ in range(STREAMS)]
    for caller in callers:
        caller.wait_for_responses(2)
    return callers


def assert_all_failed(callers: list[Caller], died: threading.Event) -> None:
    assert died.wait(PATIENCE_S)
    for caller in callers:
        assert str(caller.wait().error).startswith("The engine is shutting down: ")
        assert caller.caller_at_fault is False
        assert caller.finals == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker(start: StartEngine, died: threading.Event, number: int) -> None:
    engine = start(step_ms=5)
    callers = streams(engine)
    (pid,) = engine._workers.pids
    os.kill(pid, number)

    assert_all_failed(callers, died)
    assert str(begin(engine).wait().error).startswith("The engine is shutting down: ")


def test_the_server_is_told_of_a_death_while_responses_block(
    start: StartEngine, died: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen Triton takes no response; the loop waits for it."""
    monkeypatch.setattr(llm_engine, "_BLOCKED_GRACE_S", 10 * PATIENCE_S)
    engine = start(step_ms=5)
    blocks, blocked = threading.Event(), threading.Event()

    def take_no_more() -> None:
        blocked.set()
        blocks.wait()

    engine._loop.call_soon_threadsafe(take_no_more)
    assert blocked.wait(PATIENCE_S)
    try:
        os.kill(engine._workers.pids[0], signal.SIGKILL)
        assert died.wait(PATIENCE_S)
    finally:
        blocks.set()
    assert engine._has_ended.wait(PATIENCE_S)


def test_a_killed_worker_of_an_idle_engine(start: StartEngine, died: threading.Event) -> None:
    engine = start()
    assert answer(engine)
    os.kill(engine._workers.pids[0], signal.SIGKILL)

    assert died.wait(PATIENCE_S)


def test_a_worker_whose_task_ends(start: StartEngine, died: threading.Event) -> None:
    """Its process lives on, and answers nothing: long before the limit of a hang."""
    engine = start(step_ms=5, end_after=20)

    assert_all_failed([begin(engine, 1500) for _ in range(STREAMS)], died)
    assert "ValueError: a tensor has no name" in str(engine._ends_because)


def test_a_worker_that_hangs(start: StartEngine, died: threading.Event) -> None:
    engine = start(hang_timeout_s=0.5, step_ms=5, hang_after=20)

    assert_all_failed([begin(engine, 1500) for _ in range(STREAMS)], died)
    assert "no token was generated for" in str(engine._ends_because)


def test_a_worker_that_hangs_without_a_request(start: StartEngine, died: threading.Event) -> None:
    """A request of the backend's own finds it; none may come before the answer's last step."""
    engine = start(hang_after=8)
    assert len(answer(engine)) == 8
    engine._settings = replace(engine._settings, hang_timeout_s=0.5, canary_interval_s=0.2)

    assert died.wait(PATIENCE_S)
    assert not begin(engine).wait().caller_at_fault


def test_memory_that_runs_out_in_a_step_is_no_fault_of_the_callers(
    start: StartEngine, died: threading.Event
) -> None:
    engine = start(step_ms=5, oom_after=20)

    assert_all_failed([begin(engine, 1500) for _ in range(STREAMS)], died)
    assert "CUDA out of memory" in str(engine._ends_because)


def test_a_step_that_fails_once_is_no_fault_of_the_callers(
    start: StartEngine, died: threading.Event
) -> None:
    engine = start(step_ms=5, error_after=20)
    callers = [begin(engine, 100).wait() for _ in range(2)]

    assert "out of bounds" in str(callers[0].error)
    assert callers[0].caller_at_fault is False
    assert callers[1].error is None
    assert len(answer(engine)) == 8
    assert not died.is_set()


def test_a_response_that_cannot_be_read_fails_one_request(
    start: StartEngine, died: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """result.py of 1.2.1 asserts that each token has a log probability."""
    engine = start(step_ms=5)
    result = sys.modules["tensorrt_llm.fake.result"].RequestOutput
    handle = result._handle

    def assert_log_probs(output: Any, response: Any) -> None:
        assert output._params.max_tokens != 33, "log probabilities are missing"
        handle(output, response)

    monkeypatch.setattr(result, "_handle", assert_log_probs)
    others, failing = begin(engine, 100), begin(engine, 33)

    assert "log probabilities are missing" in str(failing.wait().error)
    assert failing.caller_at_fault is False
    assert others.wait().error is None
    assert settles(lambda: not engine._tasks)
    assert not died.is_set()


def test_an_earlier_failure_raised_at_an_innocent_request(
    start: StartEngine, died: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then shuts down on the event loop, and waits for a worker that hangs."""
    engine = start(fatal_after=8)
    assert len(answer(engine)) == 8
    guilty = begin(engine)
    assert settles(lambda: engine._llm._executor._fatal is not None)
    monkeypatch.setattr(llm_engine, "_BLOCKED_LIMIT_S", 0.5)
    innocent = begin(engine)

    assert_all_failed([guilty, innocent], died)
    assert "blocked the event loop" in str(engine._ends_because)


def test_an_abort_without_an_effect_is_bounded(
    start: StartEngine, died: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_backends.llm_api.engine._ABORT_LIMIT_S", 0.1)
    engine = start(step_ms=5, ignore_abort=True)
    caller = begin(engine, 1500)
    caller.wait_for_responses(1)
    caller.cancelled = True

    assert caller.wait().error is None
    assert not died.is_set()


def test_a_request_that_leaves_the_librarys_queue(
    start: StartEngine, died: threading.Event, tmp_path: Path
) -> None:
    """The library drops it without a response; its prompt is not processed."""
    prompts = tmp_path / "prefilled"
    engine = start(step_ms=20, prefilled=str(prompts))
    running = [begin(engine, 1500) for _ in range(LLM_ARGS["max_batch_size"])]
    for caller in running:
        caller.wait_for_responses(1)
    before = prompts.stat().st_size
    waiting = [begin(engine, 1500, request_id=f"waits-{number}") for number in range(8)]
    for number in range(8):
        engine.stop_request(f"waits-{number}")
    for caller in waiting:
        assert caller.wait().error is None
        assert caller.tokens == []
    assert not any(caller.finals for caller in running), "the batch must have been full"
    for caller in running:
        caller.cancelled = True
    assert len(answer(engine)) == 8
    assert prompts.stat().st_size == before + 1
    assert not died.is_set()


def test_a_worker_that_dies_while_loading(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constructor of 1.2 never returns then."""
    monkeypatch.setattr("trtllm_backends.llm_api.engine._START_GRACE_S", 0.2)
    with pytest.raises(EngineFailed, match=r"ended while starting|died during initialization"):
        start(load_exit=1)


def test_memory_that_runs_out_while_loading(start: StartEngine) -> None:
    with pytest.raises(EngineFailed, match="CUDA out of memory"):
        start(load_oom=1)


def test_combinations_that_the_executor_refuses(
    start_engine: StartEngine, checkpoint: Path, tmp_path: Path
) -> None:
    """The arguments that this project completes have none of them."""
    folder = copy_checkpoint(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "full_attention_interval": 4}))

    with pytest.raises(EngineFailed, match="block reuse is on"):
        start_engine(folder)
    assert answer(start_engine(folder, llm_args={"kv_cache_config": {"enable_block_reuse": False}}))


def test_a_vision_language_model_without_its_processor(
    start_engine: StartEngine, checkpoint: Path, tmp_path: Path
) -> None:
    folder = copy_checkpoint(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(EngineFailed, match="Can't load image processor"):
        start_engine(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    assert answer(start_engine(folder))
