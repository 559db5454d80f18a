"""Programs read the service's status, and no sentence of its log."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest
from tests.end_to_end.test_console import console_url
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.paths import ROOT
from tests.support.truss_process import Served, free_port
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.observability.status import State

SENTENCES = {
    "packages/trtllm_truss/endpoints/application.py": ['"cannot start: %s"'],
    "packages/trtllm_truss/serving/startup_log.py": ['"%s …"', '"%s: %s (%.1f s)"'],
    "packages/trtllm_truss/serving/service.py": ['"ready after %.1f s"'],
    "packages/trtllm_truss/serving/supervisor.py": [
        *('"engine exited: %s"', '"restart %d of %d"', '"engine restarted"'),
    ],
    "packages/trtllm_truss/observability/metrics.py": ['f"request {line}"'],
}


@pytest.fixture(scope="module")
def reworded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the Truss, and put other words before each sentence about its state."""
    truss = tmp_path_factory.mktemp("reworded")
    for name in ("model", "data", "packages"):
        shutil.copytree(ROOT / name, truss / name)
    shutil.copy(ROOT / "requirements.txt", truss)
    for file, sentences in SENTENCES.items():
        text = (truss / file).read_text(encoding="utf-8")
        for sentence in sentences:
            assert sentence in text, sentence
            text = text.replace(sentence, sentence.replace('"', '"Bonjour! ', 1))
        (truss / file).write_text(text, encoding="utf-8")
    return truss


def serve(truss: Path, folder: Path, **metadata: object) -> Served:
    config = config_for(write_engine(folder / "engine"), **metadata)
    return Served(config, FAKE_ENGINE, ("--truss", str(truss), "--console", str(free_port())))


def test_the_page_and_serve_know_the_state(reworded: Path, tmp_path: Path) -> None:
    served = serve(reworded, tmp_path, serving={"restart_backoff_s": 0}).wait_until_ready()
    try:
        url = console_url(served)
        shown = httpx.get(f"{url}pulse", timeout=60).json()
        assert shown["state"] == "ready"
        assert [each["name"] for each in shown["phases"]] == [
            *("engine", "triton model repository", "tokenizer", "triton")
        ]
        assert served.post({"prompt": "Hi", "max_tokens": 2}).status_code == 200
        assert settles(lambda: bool(httpx.get(f"{url}pulse", timeout=60).json()["requests"]))
        (triton,) = [pid for pid, name in served.processes().items() if name == "tritonserver"]
        os.kill(triton, signal.SIGKILL)
        assert settles(lambda: len(httpx.get(f"{url}pulse", timeout=60).json()["events"]) == 3)
        shown = httpx.get(f"{url}pulse", timeout=60).json()
        assert [each["text"] for each in shown["events"]] == [
            *("the engine answers again", "restart 1 of 5", "the engine exited")
        ]
        assert served.metric("engine_restarts_total") == 1
        told = served.status.read()
        assert told is not None
        assert (told.state, told.restarts, len(told.events)) == (State.READY, 1, 3)
        names = [phase.name for phase in told.phases]
        assert names == [each["name"] for each in shown["phases"]]
        begins_s = [phase.at_s for phase in told.phases]
        assert 0 < begins_s[0] <= begins_s[1] <= begins_s[3]
        assert "Bonjour! engine exited: " in served.log
    finally:
        assert served.end() == 0, served.log


def test_serve_tells_why_a_start_failed(reworded: Path, tmp_path: Path) -> None:
    served = serve(reworded, tmp_path, tensor_parallelism=2)
    assert served.process.wait(PATIENCE_S) == 1
    assert served.end() == 1
    told = served.status.read()
    assert told is not None
    assert told.state is State.FAILED
    assert "model_metadata.tensor_parallelism is 2" in told.reason
    assert served.lines[-1] == f"error: {told.reason}"
    assert "Bonjour! cannot start" not in served.log, "the last line says it"
    assert "Traceback" not in served.log, "Truss's own lines follow from it"
