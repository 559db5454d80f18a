"""Adapters in the library: read by their weights' names, and never if they are damaged."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.token_model.backend_requests import Caller
from tests.engines.checkpoint.llm_api.conftest import LLM_ARGS, StartEngine, keep
from tests.engines.checkpoint.llm_api.test_engine import answer, begin
from tests.engines.checkpoint.test_adapters import FOLDER, WRITTEN, complete, findings
from tests.fakes.tensorrt_llm import COUNTING, copy_checkpoint
from tests.support.lora import SMOLLM2_HIDDEN, adapter_weights, write_smollm2_adapter
from tests.support.waiting import PATIENCE_S

from trtllm_backends.llm_api import adapters
from trtllm_backends.llm_api.adapters import Adapter, AdapterFiles
from trtllm_backends.llm_api.engine import EngineFailed, LlmEngine
from trtllm_backends.llm_api.library import Library
from trtllm_truss.engines.adapters import Adapter as Contents
from trtllm_truss.engines.checkpoint.adapter_files import read_adapter_folder
from trtllm_truss.errors import ArtifactError

WEIGHTS = "adapter_model.safetensors"
STREAMS = 32


@pytest.fixture(scope="module", autouse=True)
def _counting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in COUNTING.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {name: write_smollm2_adapter(tmp_path / name) for name in ("sql", "chat")}


def truncate(folder: Path) -> None:
    file = folder / WEIGHTS
    os.truncate(file, file.stat().st_size - 9)


def refused(engine: LlmEngine, number: int) -> str:
    caller = begin(engine, lora_task_id=number).wait()
    assert caller.caller_at_fault is False
    return str(caller.error)


@pytest.mark.parametrize("written", WRITTEN)
def test_what_the_library_stops_at_is_refused_before(library: Library, written: str) -> None:
    """The fake reads the names as NVIDIA's loader does, whose late releases skip some."""
    fake = importlib.import_module("tensorrt_llm.fake.adapters")
    try:
        fake.read(FOLDER / written)
        loads = True
    except (KeyError, AssertionError, ValueError):
        loads = False
    try:
        read = read_adapter_folder("sql", FOLDER / written)
        served = not findings(complete(read, version=library.version), library.version)
    except ArtifactError:
        served = False
    assert loads or not served


def test_a_damaged_adapter_fails_the_start_by_name(
    start_engine: StartEngine, folders: dict[str, Path]
) -> None:
    truncate(folders["chat"])
    words = r"^lora_adapters.chat: adapter_model.safetensors is damaged: its tensors have \d+ bytes"
    with pytest.raises(EngineFailed, match=words):
        start_engine(adapters=folders)
    shutil.rmtree(folders["sql"])
    with pytest.raises(
        EngineFailed, match=r"^lora_adapters.sql: adapter_config.json cannot be read"
    ):
        start_engine(adapters=folders)


@pytest.fixture
def engine(
    start_engine: StartEngine, checkpoint: Path, tmp_path: Path, folders: dict[str, Path]
) -> LlmEngine:
    model = copy_checkpoint(checkpoint, tmp_path / "checkpoint", step_ms=5)
    return start_engine(model, adapters=folders)


def test_a_damaged_one_fails_its_own_requests(engine: LlmEngine, folders: dict[str, Path]) -> None:
    good = answer(engine, lora_task_id=8)
    whole = (folders["chat"] / WEIGHTS).read_bytes()
    streams = [begin(engine, 300, lora_task_id=7 * (number % 2)) for number in range(STREAMS)]
    for stream in streams:
        stream.wait_for_responses(2)
    truncate(folders["chat"])
    assert refused(engine, 8).startswith(
        'Adapter "chat" cannot be used: adapter_model.safetensors is damaged: its tensors have '
    )
    assert not any(stream.finals for stream in streams)
    assert all(stream.wait().error is None for stream in streams)
    (folders["chat"] / WEIGHTS).unlink()
    assert "adapter_model.safetensors cannot be read (No such file" in refused(engine, 8)
    (folders["chat"] / WEIGHTS).write_bytes(adapter_weights(hidden=SMOLLM2_HIDDEN, rank=1))
    assert "its files have changed since the server started" in refused(engine, 8)
    (folders["chat"] / WEIGHTS).write_bytes(whole)
    assert answer(engine, lora_task_id=8) == good


def test_a_written_configuration_is_noticed(engine: LlmEngine, folders: dict[str, Path]) -> None:
    (folders["sql"] / "adapter_config.json").touch()
    assert answer(engine, lora_task_id=7)
    write_smollm2_adapter(folders["sql"], lora_alpha=9)
    assert "its files have changed since the server started" in refused(engine, 7)


def test_a_configuration_that_vanishes_while_it_is_read(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folders["sql"] / "adapter_config.json"
    files = AdapterFiles(Adapter(7, "sql", str(folders["sql"])))

    def read(name: str, folder: Path) -> Contents:
        contents = read_adapter_folder(name, folder)
        file.unlink()
        return contents

    monkeypatch.setattr(adapters, "read_adapter_folder", read)
    file.touch()
    with pytest.raises(ArtifactError, match=r"adapter_config.json cannot be read \(No such file"):
        files.check()


def test_a_request_is_answered_if_no_thread_can_look_at_its_files(
    engine: LlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        words = 'Adapter "chat" cannot be used: can\'t start new thread'
        assert refused(engine, 8) == words
    assert answer(engine, lora_task_id=8)


def test_an_error_of_loading_names_the_adapter(
    start_engine: StartEngine,
    llm_api_version: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is damaged between our check of its files and the library's."""
    died = threading.Event()
    config = {**LLM_ARGS["lora_config"], "max_cpu_loras": 1}
    engine = start_engine(
        adapters=folders,
        on_death=died.set,
        llm_args={"lora_config": config},
        hang_timeout_s=10 * PATIENCE_S,
        canary_interval_s=10 * PATIENCE_S,
    )
    assert answer(engine, lora_task_id=8)
    assert answer(engine, lora_task_id=7)  # drops the other one
    monkeypatch.setattr(AdapterFiles, "check", lambda _: None)
    truncate(folders["chat"])
    try:
        if llm_api_version.startswith("1.3"):
            words = 'Adapter "chat" cannot be used: Failed to load LoRA adapter: '
            assert refused(engine, 8).startswith(words)
            assert answer(engine, lora_task_id=7)
            assert not died.is_set()
            return
        stream: Caller = begin(engine, 1500)
        error = refused(engine, 8)
        assert "a worker's task ended (SafetensorError: Error while deserializing" in error
        assert error.endswith('requests for adapter "chat" had not started.')
        assert died.wait(PATIENCE_S)
        assert str(stream.wait().error) == error
    finally:
        if not engine.close():
            keep(engine._llm)
