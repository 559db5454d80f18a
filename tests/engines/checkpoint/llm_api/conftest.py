"""The backend's engine with the fake library, in this process and in Triton."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.tensorrt_llm import COUNTING, SITE, fake_library, write_checkpoint
from tests.support.lora import write_smollm2_adapter
from tests.support.paths import TEMPLATES
from tests.support.waiting import PATIENCE_S

from trtllm_backends.llm_api.adapters import Adapter
from trtllm_backends.llm_api.engine import LlmEngine
from trtllm_backends.llm_api.library import Library, Workers, import_library
from trtllm_backends.llm_api.request import LlmSettings, served_inputs
from trtllm_truss.engines.checkpoint.samplers import sampler_arguments
from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.machine.runtime import assemble_backends, find_installation
from trtllm_truss.triton.model_repository import render_repository
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.process import ServerProcess

LLM_ARGS: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_batch_size": 32,
    "max_seq_len": 2048,
    "max_num_tokens": 1024,
    "kv_cache_config": {"free_gpu_memory_fraction": 0.9},
    "guided_decoding_backend": "xgrammar",
    "lora_config": {
        "lora_target_modules": ["attn_q", "attn_v"],
        "max_lora_rank": 2,
        "max_loras": 2,
        "max_cpu_loras": 2,
    },
}

StartEngine = Callable[..., LlmEngine]
StartTriton = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def checkpoint(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (weights,) = model_folder.glob("*.gguf")
    return write_checkpoint(tmp_path_factory.mktemp("llm") / "checkpoint", weights)


@pytest.fixture(scope="module")
def library(llm_api_version: str) -> Iterator[Library]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLLM_FAKE_VERSION", llm_api_version)
        patch.setenv("TLLM_FAKE_SESSION", "process")
        patch.syspath_prepend(str(SITE))
        before = dict(os.environ)
        yield import_library()
        os.environ.clear()
        os.environ.update(before)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers that load at once and repeat the prompt."""
    for name, value in COUNTING.items():
        monkeypatch.setenv(name, value)


class WorkersBeside(Workers):
    """Workers of one engine; others, such as the shared server's, run below this process too."""

    def __init__(self) -> None:
        super().__init__()
        others = Workers()
        others.find()
        self._others = others.pids

    def find(self) -> None:
        super().find()
        for pid in self._others:
            self._known.pop(pid, None)


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smollm2_adapter(tmp_path_factory.mktemp("adapters") / "seven")


def keep(llm: Any) -> None:
    """Keep an LLM whose worker is dead: its shutdown, in `__del__` and at exit, never returns."""
    atexit.unregister(sys.modules["tensorrt_llm.fake.llm"]._shut_down)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(llm))


@pytest.fixture(scope="module")
def start_engine(library: Library, checkpoint: Path, adapter: Path) -> Iterator[StartEngine]:
    """Start engines in this process; close those that must not die after the module."""
    started: list[LlmEngine] = []

    def start(
        folder: Path = checkpoint,
        *,
        on_death: Callable[[], None] | None = None,
        on_blocks: Callable[[Mapping[str, float]], None] = lambda blocks: None,
        llm_args: dict[str, Any] = {},  # noqa: B006 - not changed
        adapters: Mapping[str, Path] = {"seven": adapter},
        **settings: Any,
    ) -> LlmEngine:
        read = LlmSettings(
            folder,
            folder,
            {**LLM_ARGS, **sampler_arguments(library.version, llm_args), **llm_args},
            adapters={
                number: Adapter(number, name, str(place))
                for number, (name, place) in enumerate(adapters.items(), 7)
            },
            cancellation_check_s=0.005,
            **settings,
        )
        fail = functools.partial(pytest.fail, "the engine died")
        limits = read.limits(served_inputs(library.version, read.llm_args))
        engine = LlmEngine(library, read, limits, on_death or fail, on_blocks)
        if on_death is None:
            started.append(engine)
        engine._workers = WorkersBeside()
        engine.start()
        engine._workers.find = lambda: None  # it would find, and kill, those of later engines
        return engine

    yield start
    for engine in started:
        engine.close()  # False on a machine so busy that it takes longer than its limit


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> LlmEngine:
    return start_engine()


@pytest.fixture(scope="module")
def start_llm_triton(
    llm_api_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartTriton]:
    """Start Tritons with the fake library; stop them after the module."""
    with ExitStack() as stack:

        def start(
            folder: Path,
            *,
            ready_s: float = PATIENCE_S,
            version: str = llm_api_version,
            llm_args: dict[str, Any] = {},  # noqa: B006 - not changed
            **parameters: Any,
        ) -> ServerProcess:
            run = tmp_path_factory.mktemp("triton")
            installation = find_installation()
            environment = fake_library(version)
            command = launcher(
                installation,
                repository=render_repository(
                    TEMPLATES,
                    run / "repository",
                    ModelConfig(
                        folder,
                        {
                            "tokenizer_dir": str(folder),
                            "llm_args": json.dumps({**LLM_ARGS, **llm_args}),
                            **parameters,
                        },
                        of_executor=False,
                    ),
                    backend="llm_api",
                    max_batch_size=32,
                    tensorrt_llm_version=PINNED_VERSION,
                ),
                backends=assemble_backends(installation, run / "backends", environment),
                world_size=1,
            )
            process = ServerProcess(
                command,
                server_environment({**os.environ, **environment}, installation, spawns=True),
            )
            stack.callback(process.stop, 5)
            process.start()
            process.wait_until_ready(ready_s)
            return process

        yield start
