"""`truss.load(DIR).predict(…)` in a Python process without this package."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from typing import cast

import pytest
import yaml
from tests.support.paths import EXAMPLE, ROOT
from tests.support.smollm2 import smollm2_tokenizer, write_small_smollm2
from tests.support.truss_process import alive
from tests.support.waiting import PATIENCE_S

from trtllm_truss.endpoints.routes import InProcessPredict
from trtllm_truss.errors import EngineUnavailable
from trtllm_truss.requests import AnswerItem, GenerationRequest, TextDelta
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.model import Serving

PRELUDE = """
    import asyncio, importlib.util, json, os, sys
    sys.path.append({root!r})
    from benchmarks.servers.usage import descendants  # imports the package, which goes again
    for name in [name for name in sys.modules if name.partition(".")[0] == "trtllm_truss"]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not os.path.isdir(path + "/trtllm_truss")]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in finder.__module__]
    import truss

    REAL = {real!r}
    GREEDY = {{"prompt": "The capital of France is", "max_tokens": 24, "top_k": 1}}

    def predict(folder={small!r}, **fields):
        return truss.load(folder).predict({{**GREEDY, **fields}})

    def tell(name, value):
        print(json.dumps([name, value, descendants(os.getpid())]), flush=True)
"""
Told = dict[str, tuple[object, dict[int, str]]]


def write_small_truss(folder: Path) -> Path:
    """Write the example with a model that loads in a fraction of the time."""
    shutil.copytree(EXAMPLE.parent, folder)
    config = yaml.safe_load(EXAMPLE.read_text())
    config["external_package_dirs"] = [str(ROOT / "packages")]
    config["model_metadata"]["engine_repository"] = str(write_small_smollm2(folder / "engine"))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def run(tmp_path: Path, temporary: Path, script: str) -> Told:
    """Run a script; return its reported values, each with the child processes at that time."""
    small = write_small_truss(tmp_path / "small")
    prelude = PRELUDE.format(root=str(ROOT), small=str(small), real=str(EXAMPLE.parent))
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(temporary)}
    environment.pop("PYTHONPATH", None)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, err
    told = {name: (value, {int(pid): comm for pid, comm in pids.items()})
            for name, value, pids in map(json.loads, out.splitlines())}  # fmt: skip
    for _, pids in told.values():
        assert not alive(pids)
    assert not list(Path("/dev/shm").glob(f"trtllm_truss_{process.pid}_*"))
    assert "Exception ignored" not in err
    assert "Traceback" not in err
    return told


def test_the_example_streams(tmp_path: Path, temporary: Path) -> None:
    told = run(
        tmp_path,
        temporary,
        """
        assert importlib.util.find_spec("trtllm_truss") is None

        async def as_in_a_notebook():
            pieces = predict(REAL)
            tell("first", next(pieces))
            tell("others", list(pieces))

        asyncio.run(as_in_a_notebook())
        """,
    )
    first, running = told["first"]
    assert "tritonserver" in running.values()
    others, running = told["others"]
    assert isinstance(others, list)
    assert len(others) > 1
    assert "Paris" in str(first) + "".join(others)
    assert not running


@pytest.mark.thorough
def test_a_whole_answer_a_bad_body_and_a_stream_that_is_not_read_to_its_end(
    tmp_path: Path, temporary: Path
) -> None:
    told = run(
        tmp_path,
        temporary,
        """
        tell("whole", predict(stream=False, max_tokens=100))
        tell("joined", "".join(predict(max_tokens=100)))
        try:
            predict(promt="x")
        except Exception as error:
            tell("raised", [type(error).__name__, str(error)])
        tell("afterwards", None)

        pieces = predict(max_tokens=8000, ignore_eos=True)
        tell("first", next(pieces))
        """,
    )
    whole, running = told["whole"]
    assert whole == told["joined"][0]
    assert not running
    raised, running = told["raised"]
    assert isinstance(raised, list)
    assert raised[0] == "InvalidRequest"
    assert "promt is not a field of this request; did you mean prompt?" in raised[1]
    assert "tritonserver" in running.values()
    assert not told["afterwards"][1]
    assert "tritonserver" in told["first"][1].values()


class FakeService:
    """Repeats a word until stopped; fails on the prompt "fail"."""

    def __init__(self) -> None:
        self.pipeline = self.generator = self
        self.limits = Serving()
        self.tokenizer = smollm2_tokenizer()
        self.ended = threading.Event()
        self.stopped = threading.Event()

    async def generate(
        self, requests: Sequence[GenerationRequest], protocol: str
    ) -> AsyncGenerator[list[AnswerItem], None]:
        try:
            while requests[0].prompt != "fail":
                yield [TextDelta("word ")]
                await asyncio.sleep(0.01)
            raise EngineUnavailable("the engine is gone.")
        finally:
            self.ended.set()

    def stop(self) -> None:
        self.stopped.set()


def in_process(service: FakeService) -> InProcessPredict:
    return InProcessPredict(cast(Service, service), {})


def test_closing_a_stream_ends_its_request_and_dropping_it_the_engine() -> None:
    service = FakeService()
    predict = in_process(service)
    pieces = predict({"prompt": "Hi"})
    assert isinstance(pieces, Generator)
    assert next(pieces) == "word "
    pieces.close()
    assert service.ended.wait(PATIENCE_S)
    assert not service.stopped.is_set()
    del pieces, predict
    assert service.stopped.is_set()


def test_garbage_found_on_a_thread_of_the_service_ends_it() -> None:
    """A thread cannot join itself, and the service joins its supervisor."""
    supervisor = threading.Thread(target=gc.collect)

    class Supervised(FakeService):
        def stop(self) -> None:
            supervisor.join()
            super().stop()

    service = Supervised()
    gc.disable()
    try:
        cycle: list[object] = [in_process(service)]
        cycle.append(cycle)
        del cycle
        supervisor.start()
        assert service.stopped.wait(PATIENCE_S)
    finally:
        gc.enable()


def test_the_end_of_a_process_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12.1 refuses to."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    service = FakeService()
    predict = in_process(service)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    del predict
    assert service.stopped.is_set()


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_failure_raises_and_releases_the_engine(stream: bool) -> None:
    service = FakeService()
    with pytest.raises(EngineUnavailable, match="the engine is gone"):
        "".join(in_process(service)({"prompt": "fail", "stream": stream}))
    assert service.stopped.is_set()
