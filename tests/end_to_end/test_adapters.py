"""A checkpoint with what its settings promise: beams, and adapters whose files may change."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.tensorrt_llm import COUNTING, serve_checkpoint, write_checkpoint
from tests.support.lora import SMOLLM2_HIDDEN, adapter_weights, write_smollm2_adapter
from tests.support.smollm2 import smollm2_file, write_small_smollm2
from tests.support.truss_process import Served
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.server

PROMPT = "One two three four"
WEIGHTS = "adapter_model.safetensors"
NO_HANG = {"hang_timeout_s": 10 * PATIENCE_S}
STREAMS = 8


def ask(served: Served, model: str, tokens: int = 4, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, **fields}
    return httpx.post(f"http://127.0.0.1:{served.port}/v1/completions", json=body, timeout=60)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_beams_are_answered(tmp_path: Path, llm_api_version: str) -> None:
    (weights,) = write_small_smollm2(tmp_path / "small").glob("*.gguf")
    folder = write_checkpoint(tmp_path / "model", weights)
    served = serve_checkpoint(folder, llm_api_version, {}, runtime={"max_beam_width": 2})
    try:
        served.wait_until_ready()
        answer = served.post({"prompt": PROMPT, "max_tokens": 4, "beam_width": 2, "stream": False})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
    finally:
        assert served.end() == 0, served.log


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    return {name: write_smollm2_adapter(tmp_path / name) for name in ("sql", "chat")}


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 9)


def start(model: Path, version: str, adapters: dict[str, Path]) -> Served:
    names = {name: str(place) for name, place in adapters.items()}
    return serve_checkpoint(model, version, COUNTING, lora_adapters=names, serving=NO_HANG)


def test_a_damaged_adapter_fails_the_start(
    tmp_path: Path, llm_api_version: str, adapters: dict[str, Path]
) -> None:
    truncate(adapters["chat"] / WEIGHTS)
    served = start(write_checkpoint(tmp_path / "model", smollm2_file()), llm_api_version, adapters)
    assert served.wait() != 0
    words = f"error: lora_adapters.chat '{adapters['chat']}': {WEIGHTS} is damaged: its tensors "
    assert served.lines[-1].startswith(words), served.log


@pytest.mark.thorough  # in every run: tests/triton/client/test_client.py
def test_an_adapter_that_the_engine_fails_ends_the_start(
    tmp_path: Path, llm_api_version: str, adapters: dict[str, Path]
) -> None:
    """An error in a step after those of the plain request."""
    model = write_checkpoint(tmp_path / "model", smollm2_file(), error_after=3)
    served = start(model, llm_api_version, adapters)
    assert served.wait() != 0
    words = r"error: the engine failed its first request with lora_adapters\.(sql|chat): index 3"
    assert re.match(words, served.lines[-1]), served.log


HARMS: dict[str, Callable[[Path], object]] = {
    "is damaged: ": truncate,
    "cannot be read (No such file": Path.unlink,
    "its files have changed since the server started": lambda file: file.write_bytes(
        adapter_weights(hidden=SMOLLM2_HIDDEN, rank=1)
    ),
}


@pytest.fixture
def served(tmp_path: Path, llm_api_version: str, adapters: dict[str, Path]) -> Iterator[Served]:
    model = write_checkpoint(tmp_path / "model", smollm2_file(), step_ms=25)
    served = start(model, llm_api_version, adapters)
    try:
        yield served.wait_until_ready()
    finally:
        assert served.end() == 0, served.log


def test_a_damaged_adapter_fails_its_own_requests(
    served: Served,
    adapters: dict[str, Path],
    pytestconfig: pytest.Config,
    report_round: Callable[[dict[str, float]], None],
) -> None:
    harms = itertools.cycle(HARMS.items())
    for words, harm in itertools.islice(harms, pytestconfig.getoption("--rounds")):
        report_round(harmed(served, adapters["chat"] / WEIGHTS, harm, words))


def harmed(
    served: Served, file: Path, harm: Callable[[Path], object], words: str
) -> dict[str, float]:
    """Damage an adapter beside streams of the model and of another adapter; repair it.

    Returns:
        Seconds of its refused request, and of another adapter's right after.
    """
    whole = file.read_bytes()
    good, good_sql = text_of(ask(served, "chat")), text_of(ask(served, "sql"))
    started = threading.Barrier(STREAMS + 1, timeout=PATIENCE_S)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        streams = [
            pool.submit(finished, served, ("model", "sql")[number % 2], started.wait)
            for number in range(STREAMS)
        ]
        started.wait()
        harm(file)
        begin_s = time.monotonic()
        refused = ask(served, "chat")
        refused_s = time.monotonic() - begin_s
        assert text_of(ask(served, "sql")) == good_sql
        answered_s = time.monotonic() - begin_s - refused_s
        assert not any(each.done() for each in streams)
        assert all(each.result() for each in streams), served.log[-3000:]
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["code"] == "adapter_unavailable"
    message = refused.json()["error"]["message"]
    assert message.startswith('Adapter "chat" cannot be used: ')
    assert words in message
    file.write_bytes(whole)
    assert text_of(ask(served, "chat")) == good
    return {"refused_s": refused_s, "answered_s": answered_s}


def finished(served: Served, model: str, started: Callable[[], object]) -> bool:
    """Return whether a stream came to its end; call `started` at its first piece."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 600, "stream": True}
    url = f"http://127.0.0.1:{served.port}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=120) as answer:
        lines = [line for line in first_of(answer.iter_lines(), started) if line]
    return answer.status_code == 200 and lines[-1] == "data: [DONE]" and '"length"' in lines[-2]


def first_of(lines: Iterator[str], started: Callable[[], object]) -> Iterator[str]:
    yield next(lines)
    started()
    yield from lines
