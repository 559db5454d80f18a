"""The real engine and model, loaded once, and schedulers for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.token_model.backend_requests import StartScheduler

from trtllm_backends.openvino_genai import guided, scoring
from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.scheduler import Scheduler


@pytest.fixture(autouse=True)
def _normal_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile guides and load copies at this process's priority.

    The other workers of the tests leave a hundredth of a core to a lower one.
    """
    for module in (guided, scoring):
        monkeypatch.setattr(module, "NICENESS", os.getpriority(os.PRIO_PROCESS, 0))


@pytest.fixture(scope="session")
def engine(model_folder: Path) -> GenAiEngine:
    return GenAiEngine(EngineSettings(model_folder, max_batch_size=8, max_beam_width=4))


@pytest.fixture(scope="session")
def small_engine(model_folder: Path) -> GenAiEngine:
    """An engine with a KV cache of four blocks of 32 tokens."""
    return GenAiEngine(
        EngineSettings(model_folder, max_batch_size=8, max_beam_width=4, kv_cache_tokens=128)
    )


@pytest.fixture
def start_scheduler(model_folder: Path) -> Iterator[StartScheduler]:
    """Start schedulers for an engine; close them after the test."""
    started: list[Scheduler] = []

    def start(engine: GenAiEngine, **settings: object) -> Scheduler:
        given = {
            "max_batch_size": 8,
            "cancellation_check_s": 0.005,
            "response_interval_s": 0.0,
            **settings,
        }
        scheduler = Scheduler(
            engine,
            EngineSettings(model_folder, **given),  # type: ignore[arg-type]
            on_death=lambda: pytest.fail("the engine died"),
        )
        scheduler.start()
        started.append(scheduler)
        return scheduler

    yield start
    for scheduler in started:
        scheduler.close()


@pytest.fixture
def scheduler(engine: GenAiEngine, start_scheduler: StartScheduler) -> Scheduler:
    return start_scheduler(engine)
