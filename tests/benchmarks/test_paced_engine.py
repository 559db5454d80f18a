"""The paced engine behind real Triton."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.cases.setup import set_up
from benchmarks.engine.backend import find_compiler
from benchmarks.options import Options
from benchmarks.servers.target import Target
from benchmarks.servers.triton import triton
from tests.support.waiting import PATIENCE_S
from tritonclient.grpc import InferenceServerClient, InferInput

pytestmark = pytest.mark.server

STEP_MS = 5
TOO_MANY = 100_000
"""More tokens than a test could wait for."""
STOP: dict[str, Any] = {"input_lengths": [0], "request_output_len": [0], "stop": [True]}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a byte for each prompt that the engine has processed."""
    file = tmp_path_factory.mktemp("prompts") / "prefilled"
    file.touch()
    return file


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, prompts: Path) -> Iterator[Target]:
    """Triton with a paced engine that runs one request at a time."""
    if find_compiler() is None:
        pytest.skip("there is no C compiler")
    options = Options(work=tmp_path_factory.mktemp("bench"))
    paced = {"step_ms": STEP_MS, "prefilled": prompts}
    bench = set_up(options, "engine", max_batch_size=1, engine=paced)
    with triton(bench.config, bench.backend.folder, "tensorrt_llm") as target:
        yield target


class Asked:
    """A stream to the engine; records all responses."""

    def __init__(self, target: Target) -> None:
        self.client = InferenceServerClient(f"127.0.0.1:{target.grpc_port}")
        self.ids: list[list[int]] = []
        self.ended: list[str] = []
        self.started = threading.Event()
        self.client.start_stream(self._on_response)

    def ask(self, request_id: str, **values: Any) -> None:
        inputs = []
        for name, value in values.items():
            array = np.array([value], bool if isinstance(value[0], bool) else np.int32)
            kind = "BOOL" if array.dtype == bool else "INT32"
            inputs.append(InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        self.client.async_stream_infer(
            "tensorrt_llm", inputs, request_id=request_id, enable_empty_final_response=True
        )

    def _on_response(self, result: Any, error: Exception | None) -> None:
        if error is not None:
            return  # cancelled
        self.started.set()
        response = result.get_response()
        self.ids.append(result.as_numpy("output_ids").ravel().tolist())
        if response.parameters["triton_final_response"].bool_param:
            self.ended.append(response.id)

    def close(self, *, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def request(tokens: int, *prompt: int, **more: Any) -> dict[str, Any]:
    return {
        "input_ids": prompt,
        "input_lengths": [len(prompt)],
        "request_output_len": [tokens],
        "streaming": [True],
        **more,
    }


def test_engine_repeats_the_prompt_one_id_a_response(engine: Target) -> None:
    asked = Asked(engine)
    asked.ask("a", **request(5, 7, 8))
    asked.close()
    assert asked.ids == [[7], [8], [7], [8], [7]]
    assert asked.ended == ["a"]


def test_engine_ends_before_the_end_id(engine: Target) -> None:
    asked = Asked(engine)
    asked.ask("a", **request(50, 7, 8, 9, end_id=[9]))
    asked.close()
    assert asked.ids == [[7], [8], []]


def test_engine_stops_a_request_that_runs(engine: Target) -> None:
    asked = Asked(engine)
    asked.ask("a", **request(TOO_MANY, 7))
    asked.ask("a", **STOP)
    asked.close()
    assert asked.ended == ["a", "a"]
    assert [] in asked.ids
    assert len(asked.ids) < TOO_MANY


def test_engine_lets_go_of_a_cancelled_request(engine: Target) -> None:
    gone = Asked(engine)
    gone.ask("a", **request(TOO_MANY, 7))
    assert gone.started.wait(PATIENCE_S)
    gone.close(cancel=True)
    asked = Asked(engine)
    asked.ask("b", **request(2, 7))
    asked.close()  # waits for the whole answer, which needs the only slot of the batch
    assert asked.ids == [[7], [7]]


def test_engine_processes_the_prompt_of_a_request_that_is_stopped_in_its_queue(
    engine: Target, prompts: Path
) -> None:
    before = prompts.stat().st_size
    running, waiting = Asked(engine), Asked(engine)
    running.ask("a", **request(TOO_MANY, 7))
    assert running.started.wait(PATIENCE_S)
    waiting.ask("b", **request(TOO_MANY, 7))
    waiting.ask("b", **STOP)
    assert waiting.started.wait(PATIENCE_S)
    assert waiting.ids == [[]], "the order to stop alone is answered"
    running.ask("a", **STOP)
    for asked in (running, waiting):
        asked.close()
    assert waiting.ended == ["b", "b"]
    assert waiting.ids == [[], []]
    assert prompts.stat().st_size == before + 2


def test_engine_answers_a_stop_of_an_unknown_id_like_any_other(engine: Target) -> None:
    asked = Asked(engine)
    asked.ask("unknown", **STOP)
    asked.close()
    assert asked.ended == ["unknown"]
