"""Import TensorRT-LLM, probe the installed version and watch its engine's processes.

TensorRT-LLM 1.2.1 and the 1.3 pre-releases differ in keyword arguments and exceptions. Their names
are probed; only the sampler needs the version.
"""

from __future__ import annotations

import importlib
import inspect
import locale
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trtllm_backends.tensors import ParameterError
from trtllm_truss.engines.checkpoint.samplers import SPECULATION, why_greedy
from trtllm_truss.engines.checkpoint.variants import MTP_LENGTH, RENAMED
from trtllm_truss.processes.mpi_job import JOB_VARIABLES
from trtllm_truss.processes.process_guard import is_alive, living_processes, name_of, read_proc

_NO_USAGE_STATISTICS = {
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}
_SAMPLED = "allow_advanced_sampling"
_BY_KIND = {
    SPECULATION: "DecodingBaseConfig",
    "sparse_attention_config": "BaseSparseAttentionConfig",
}
"""Arguments whose class depends on a field; up to 1.2, `LLM` refuses a mapping for them.

Source: ``SpeculativeConfig`` of tensorrt_llm/llmapi/llm_args.py, 1.2.1: a union of classes that
refuse other fields, and whose ``decoding_type`` is not a field. ``from_dict`` of the base class,
which NVIDIA's own servers call, selects the class. In 1.3 it is gone, and ``decoding_type`` is a
field.
"""
_KINDS_BEFORE_1_3 = {"Eagle3": "Eagle", "Draft_Target": "DraftTarget", "Auto": "AUTO"}
_KINDS_OF_1_3 = {"DraftTarget": "Draft_Target", "Auto": "AUTO"}
"""Names of the draft kinds before and since 1.3, which renamed them."""
_CLASSES = {"Draft_Target": "DraftTarget", "AUTO": "Auto"}
_CLASS_ENDS = "DecodingConfig"
_MATCHED = ("max_matching_ngram_size", 2)
"""Length of NGram's patterns: its default from 1.3 on.

Earlier releases default to 0, which they refuse.
"""


@dataclass(frozen=True)
class Library:
    """The installed TensorRT-LLM.

    Attributes:
        version: `tensorrt_llm.__version__`.
        llm: the class `LLM`.
        sampling_params: the class `SamplingParams`.
        guided_decoding_params: the class `GuidedDecodingParams`.
        lora_request: the class `LoRARequest`.
        request_error: error class of a single request.
        llm_arguments: names of the arguments of `LLM`; empty if they cannot be found.
        from_dict: functions that build an argument's object from a mapping, by argument name.
        draft_fields: field names of each class of drafts, by class.
    """

    version: str
    llm: Any
    sampling_params: Any
    guided_decoding_params: Any
    lora_request: Any
    request_error: type[Exception]
    llm_arguments: frozenset[str]
    from_dict: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    draft_fields: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that this version does not have, or that would drop request parameters.

        Raises:
            ParameterError: lists the arguments.
        """
        if reason := why_greedy(self.version, arguments):
            raise ParameterError(f"runtime.llm_args.{reason}")
        unknown = sorted(arguments.keys() - self.llm_arguments) if self.llm_arguments else []
        if unknown:
            raise ParameterError(
                f"TensorRT-LLM {self.version} has no LLM argument {', '.join(unknown)}; remove it "
                "from runtime.llm_args."
            )

    def build(self, model: str, tokenizer: str, arguments: Mapping[str, Any]) -> Any:
        """Return the `LLM`, converting some arguments to objects."""
        given = dict(arguments)
        if drafts := given.get(SPECULATION):
            given[SPECULATION] = self._drafts(drafts)
        for name in self.from_dict.keys() & given.keys():
            if given[name] is not None:
                given[name] = self.from_dict[name](dict(given[name]))
        return self.llm(model=model, tokenizer=tokenizer, **given)

    def _drafts(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a kind and its fields to the names of this version."""
        is_before_1_3 = SPECULATION in self.from_dict
        kinds = _KINDS_BEFORE_1_3 if is_before_1_3 else _KINDS_OF_1_3
        kind = str(given.get("decoding_type"))
        kind = kinds.get(kind, kind)
        fields = self.draft_fields.get(_CLASSES.get(kind, kind) + _CLASS_ENDS, frozenset())
        drafts = {**given, "decoding_type": kind}
        for names in RENAMED:
            _rename(drafts, names, fields)
        if kind == "MTP":
            _rename(drafts, MTP_LENGTH if is_before_1_3 else MTP_LENGTH[::-1], fields)
        if kind == "NGram":
            drafts.setdefault(*_MATCHED)
        if _SAMPLED in fields:
            drafts.setdefault(_SAMPLED, True)
        return drafts


def _rename(values: dict[str, Any], names: Sequence[str], fields: Collection[str]) -> None:
    """Rename a value, given under any of some names, to the first name that is a field."""
    given = [name for name in names if name in values]
    here = next((name for name in names if name in fields), None)
    if given and here is not None:
        value = values[given[0]]
        for name in given:
            del values[name]
        values[here] = value


def import_library() -> Library:
    """Import TensorRT-LLM without usage statistics and without the variables of an MPI job.

    The LLM's workers cannot be spawned from inside a job.

    Raises:
        ImportError: it is not installed, or does not have the LLM API.
    """
    for name in [*filter(JOB_VARIABLES.match, os.environ)]:
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
        **_kinds(importlib.import_module("tensorrt_llm.llmapi.llm_args")),
    )


def _kinds(llm_args: Any) -> dict[str, Any]:
    """Find the classes of `_BY_KIND`; a release may lack any of them and their parts."""
    bases: dict[str, Any] = {n: getattr(llm_args, base, None) for n, base in _BY_KIND.items()}
    return {
        "from_dict": {
            name: found.from_dict for name, found in bases.items() if hasattr(found, "from_dict")
        },
        "draft_fields": {
            name: frozenset(getattr(found, "model_fields", ()))
            for name, found in vars(llm_args).items()
            if name.endswith(_CLASS_ENDS)
        },
    }


def _read_files_as_utf8() -> None:
    """Replace the stub's ASCII encoding, with which the library cannot read most tokenizers."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    os.environ.setdefault("PYTHONUTF8", "1")  # for the workers


def _first(*modules: Any, name: str) -> Any:
    """Return an attribute from the first module that has it; it has moved between versions."""
    for module in modules:
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(
        f"tensorrt_llm has no {name}; use a Triton image of TensorRT-LLM 1.0 or later "
        "(docs/llm-api.md)."
    )


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
    """Start time, which distinguishes processes with the same id."""


class Workers:
    """Processes below this one: MPI's daemon and the workers that it starts.

    Up to TensorRT-LLM 1.2 nothing is raised when a worker dies, and waiting for its next token
    never returns. A known worker that is gone or a zombie is dead.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}

    def find(self) -> None:
        """Find workers that have started since the last call."""
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


def ended_task(llm: Any) -> str | None:
    """Return the error of a worker's finished task, empty without an error.

    None if all are running.

    A worker whose task fails lives on in MPI's pool, and responds to nothing. Source:
    ``GenerationExecutorProxy.mpi_futures`` of tensorrt_llm/executor/proxy.py, near 1.0 to 1.3;
    under TensorRT-LLM's launcher it is empty.
    """
    for future in getattr(getattr(llm, "_executor", None), "mpi_futures", None) or ():
        if isinstance(future, Future) and future.done():
            error = None if future.cancelled() else future.exception()
            return describe(error) if error is not None else ""
    return None


def describe(error: BaseException) -> str:
    """Return an error with its causes, which contain the worker's error."""
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({describe(error.__cause__)})" if error.__cause__ else text
