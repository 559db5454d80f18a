"""The benchmarks run: real Triton, the paced engine, the real server, in tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.cases import MEASURED
from benchmarks.cases.setup import set_up
from benchmarks.engine.backend import find_compiler
from benchmarks.options import Options
from benchmarks.report import write_report
from benchmarks.result import CaseResult, Column, read_result
from benchmarks.sample import Spread
from benchmarks.servers.target import Target
from benchmarks.servers.triton import triton
from benchmarks.servers.usage import descendants
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S
from tritonclient.grpc import InferenceServerClient, InferInput

pytestmark = pytest.mark.server

STEP_MS = 5


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Triton with a paced engine that runs one request at a time."""
    if find_compiler() is None:
        pytest.skip("there is no C compiler")
    options = Options(work=tmp_path_factory.mktemp("bench"))
    bench = set_up(options, "engine", step_ms=STEP_MS, max_batch_size=1)
    with triton(bench.config, bench.backend.folder, "tensorrt_llm") as target:
        yield target


class Asked:
    """A stream to the engine and all that came through it."""

    def __init__(self, target: Target) -> None:
        self.client = InferenceServerClient(f"127.0.0.1:{target.grpc_port}")
        self.ids: list[list[int]] = []
        self.ended: list[str] = []
        self.begun = threading.Event()
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
        self.begun.set()
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
    asked.ask("a", **request(100_000, 7))
    asked.ask("a", input_lengths=[0], request_output_len=[0], stop=[True])
    asked.close()
    assert asked.ended == ["a", "a"]
    assert [] in asked.ids
    assert len(asked.ids) < 100


def test_engine_lets_go_of_a_cancelled_request(engine: Target) -> None:
    gone = Asked(engine)
    gone.ask("a", **request(100_000, 7))
    assert gone.begun.wait(PATIENCE_S)
    gone.close(cancel=True)
    asked = Asked(engine)
    asked.ask("b", **request(2, 7))
    asked.close()  # returns when the answer is whole: the one place in the batch was free again
    assert asked.ids == [[7], [7]]


def test_quick_run_writes_json_and_leaves_nothing(tmp_path: Path) -> None:
    before = descendants(os.getpid()).keys()
    command = [sys.executable, "-m", "benchmarks", "zero-cost", "--quick", "--streams", "2"]
    running = subprocess.run(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert running.returncode == 0, running.stdout + running.stderr
    content = json.loads((tmp_path / "zero-cost.json").read_text())
    assert [row["path"] for row in content["rows"]] == [
        "bare gRPC loop",
        "Triton HTTP (ensemble)",
        "trtllm-truss",
    ]
    for row in (content["rows"][0], content["rows"][2]):
        assert row["failed"]["high"] == 0
        assert row["tok_s"]["low"] > 0
    assert "× bare gRPC loop" in running.stdout
    assert descendants(os.getpid()).keys() <= before


def test_unknown_cases_are_named() -> None:
    running = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert running.returncode == 2
    assert "unknown case nonsense; choose from zero-cost," in running.stderr


def test_report_shows_what_was_written(tmp_path: Path) -> None:
    columns = [Column("path", "path"), Column("tok_s", "tok/s", 1)]
    result = CaseResult("paced", "A title", "A text.", columns)
    result.add(path="ours", tok_s=Spread(2000.0, 1990.0, 2030.0))
    result.find("A finding.")
    assert read_result(result.write(tmp_path)) == result
    page = write_report(tmp_path, tmp_path / "docs", ["paced"]).read_text()
    assert "## A title" in page
    assert "| ours | 2,000.0 ±20.0 |" in page
    assert "- A finding." in page


def test_report_opens_with_the_throughput_at_the_most_streams(tmp_path: Path) -> None:
    columns = [Column("streams", "streams"), Column("path", "path"), Column("tok_s", "tok/s")]
    for name, other in (("zero-cost", "a loop"), ("cpu-engine", "the model alone")):
        result = CaseResult(name, "A title", "A text.", columns)
        for streams in (8.0, 512.0):
            result.add(streams=streams, path="trtllm-truss", tok_s=Spread(streams, 500.0, 524.0))
            result.find(f"With {streams:g} at once, trtllm-truss carries {streams:g} × {other}.")
        result.machine["cores"] = "2"
        result.write(tmp_path)
    page = write_report(tmp_path, tmp_path, ["zero-cost", "cpu-engine"]).read_text()
    lines = [line for line in page.splitlines() if line and not line.startswith("<!--")]
    heading, first, second, third, *_ = lines
    assert heading == "# Performance"
    carried = "carries 512 ±12 tokens/s over 512 streams on 2 cores: 512 ×"
    assert first.endswith(f"{carried} a loop.")
    assert second.endswith(f"{carried} the model alone.")
    assert third.endswith("writes this page.")


def test_a_partial_run_keeps_the_other_cases(tmp_path: Path) -> None:
    columns = [Column("streams", "streams"), Column("path", "path"), Column("tok_s", "tok/s")]

    def write(name: str, tokens_s: float) -> None:
        result = CaseResult(name, f"Title of {name}", "A text.", columns)
        result.add(streams=8.0, path="trtllm-truss", tok_s=tokens_s)
        result.find(f"With 8 at once, trtllm-truss carries {tokens_s:g} × another path.")
        result.write(tmp_path)

    for name in ("paced", "zero-cost", "cpu-engine"):
        write(name, 100.0)
    before = write_report(tmp_path, tmp_path, MEASURED).read_text()
    for name in ("paced", "zero-cost"):
        (tmp_path / f"{name}.json").unlink()
    write("cpu-engine", 200.0)
    after = write_report(tmp_path, tmp_path, ["cpu-engine"]).read_text()
    changed = {line for line in after.splitlines() if line not in before.splitlines()}
    assert after.count("\n## ") == 3
    assert {"200 × another" in line or "| 200 |" in line for line in changed} == {True}
    assert len(changed) == 3, "the summary, a row and a finding"
    assert after.index("zero-cost -->\n## ") < after.index("cpu-engine -->\n## ")
    write("zero-cost", 300.0)
    assert write_report(tmp_path, tmp_path, ["cpu-engine"]).read_text() == after
