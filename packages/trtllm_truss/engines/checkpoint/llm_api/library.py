"""Import of TensorRT-LLM, what the installed version has, and the processes of its engine.

TensorRT-LLM 1.2.1 and the 1.3 pre-releases differ in keyword arguments and exceptions. Their names
are probed; only the sampler needs the version.
"""

from __future__ import annotations

import importlib
import inspect
import locale
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from trtllm_truss.backends.tensors import ParameterError
from trtllm_truss.processes.process_guard import (
    is_alive,
    living_processes,
    name_of,
    read_proc,
)

_MPI_VARIABLES = re.compile(
    r"OMPI_COMM_WORLD_(SIZE|RANK|LOCAL_SIZE|LOCAL_RANK|NODE_RANK)$"
    r"|OMPI_(UNIVERSE_SIZE|FIRST_RANKS|APP_CTX_NUM_PROCS)$"
    r"|PMIX_(?!MCA_)|PMI_|ORTE_|OMPI_MCA_orte_(?!tmpdir_base$)"
)
"""Variables of a running MPI job; the LLM's workers cannot be spawned from inside one.

`OMPI_MCA_orte_tmpdir_base` is ours: it keeps MPI's files in the folder of one start.
"""
_NO_USAGE_STATISTICS = {
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Library:
    """The installed TensorRT-LLM.

    Attributes:
        version: `tensorrt_llm.__version__`.
        llm: the class `LLM`.
        sampling_params: the class `SamplingParams`.
        guided_decoding_params: the class `GuidedDecodingParams`.
        lora_request: the class `LoRARequest`.
        request_error: the error of one request.
        llm_arguments: names of the arguments of `LLM`; empty if they cannot be found.
    """

    version: str
    llm: Any
    sampling_params: Any
    guided_decoding_params: Any
    lora_request: Any
    request_error: type[Exception]
    llm_arguments: frozenset[str]

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that this version lacks, before the LLM starts.

        Raises:
            ParameterError: names them.
        """
        unknown = sorted(arguments.keys() - self.llm_arguments) if self.llm_arguments else []
        if unknown:
            raise ParameterError(
                f"TensorRT-LLM {self.version} has no LLM argument {', '.join(unknown)}; remove it "
                "from runtime.llm_args."
            )


def import_library() -> Library:
    """Import TensorRT-LLM in an environment without MPI's variables and usage statistics.

    Raises:
        ImportError: it is not installed, or lacks the LLM API.
    """
    for name in [*filter(_MPI_VARIABLES.match, os.environ)]:
        del os.environ[name]
    os.environ.update(_NO_USAGE_STATISTICS)
    _read_files_as_utf8()
    package = importlib.import_module("tensorrt_llm")
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    executor = importlib.import_module("tensorrt_llm.executor")
    return Library(
        version=str(package.__version__),
        llm=package.LLM,
        sampling_params=package.SamplingParams,
        guided_decoding_params=llmapi.GuidedDecodingParams,
        lora_request=_first(executor, llmapi, name="LoRARequest"),
        request_error=_first(llmapi, executor, name="RequestError"),
        llm_arguments=frozenset(_argument_names(llmapi)),
    )


def _read_files_as_utf8() -> None:
    """Replace the stub's ASCII, with which the library cannot read most tokenizers."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    os.environ.setdefault("PYTHONUTF8", "1")  # of the workers


def _first(*modules: Any, name: str) -> Any:
    """Return an attribute of the first module that has it; it has moved between versions."""
    for module in modules:
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"tensorrt_llm has no {name}; use an image that docs/llm-api.md lists.")


def _argument_names(llmapi: Any) -> Iterator[str]:
    for name in ("TorchLlmArgs", "LlmArgs"):
        args = getattr(llmapi, name, None)
        if fields := getattr(args, "model_fields", None):
            yield from fields
            yield from (f.alias for f in fields.values() if getattr(f, "alias", None))
            return
        if args is not None:
            yield from inspect.signature(args).parameters
            return


_MARK = b"mpi4py"
_DAEMONS = {"orted", "prted", "prte"}


class _Process(NamedTuple):
    name: str
    started: int
    """Distinguishes processes that had the same id."""


class Workers:
    """Workers below this process: MPI's daemon, and what it starts.

    Up to TensorRT-LLM 1.2 nothing is raised when a worker dies, and a wait for its next token never
    returns. A worker that was found and is gone, or a zombie, is dead.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}

    def find(self) -> None:
        """Look for workers that have started since the last call."""
        processes = living_processes()
        children = defaultdict(list)
        for pid, (parent, _) in processes.items():
            children[parent].append(pid)
        below = [*children[os.getpid()]]
        for pid in below:
            is_worker, name = _MARK in read_proc(pid, "cmdline"), name_of(pid)
            if is_worker or name in _DAEMONS:
                self._known.setdefault(pid, _Process(name, processes[pid][1]))
            if not is_worker:  # a child looks like its worker until it executes a program
                below += children[pid]

    @property
    def pids(self) -> list[int]:
        return [*self._known]

    def dead(self) -> list[str]:
        """Return descriptions of dead workers."""
        return [
            f"{process.name} ({pid})"
            for pid, process in self._known.items()
            if not is_alive(pid, process.started)
        ]

    def kill(self) -> None:
        for pid, process in self._known.items():
            if is_alive(pid, process.started):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
