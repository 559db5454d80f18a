"""`selftest --machine`: what a minute on a stranger's machine tells, in a file without names.

The file has numbers, versions and words of a fixed vocabulary; any other text becomes "other", so
that no name, path, address or token of the machine can be in it.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss import __version__
from trtllm_truss.engines.checkpoint.arguments import graphs_apply_adapters
from trtllm_truss.engines.checkpoint.samplers import (
    CPP_SAMPLER,
    honours_penalties,
    honours_seeds,
    sampler_arguments,
    why_greedy,
)
from trtllm_truss.machine.describe import Machine
from trtllm_workbench.selftest.assumptions.run import (
    NOT_INSTALLED,
    Outcome,
    RowResult,
    Rows,
    find_installed,
)
from trtllm_workbench.selftest.assumptions.served import Installed
from trtllm_workbench.selftest.served_model import (
    CannotRun,
    CheckVerdict,
    FellShort,
    Held,
    Result,
    run_check,
)
from trtllm_workbench.selftest.spawning import Spawned, spawn

IMPORT_LIMIT_S = 40.0
_STEP = "machine"
_GB = 1e9
_DEFAULT = "default"
_TORCH_SAMPLER = "TorchSampler"
PUBLIC_VERSION = re.compile(r"\d+(\.\d+){0,2}(\.\d{4,})?((a|b|rc)\d+)?(\.(post|dev)\d+)*")
_OTHER = "other"

VOCABULARY = frozenset(
    {
        *("works", "fails", "hangs", "not run", "none", "auto", _DEFAULT, _OTHER),
        *(CPP_SAMPLER, _TORCH_SAMPLER, "sampler_type", "enable_trtllm_sampler"),
        *("enable_mixed_sampler", *(outcome.value for outcome in Outcome)),
    }
)
"""Texts that a report may hold, beside versions."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A machine, as examined within a minute.

    Attributes:
        machine: its description.
        spawned: what MPI did.
        installed: TensorRT-LLM; None if there is none.
        rows: the assumptions about the library.
        seconds: that it took.
    """

    machine: Machine
    spawned: Spawned
    installed: Installed | None
    rows: Sequence[RowResult]
    seconds: float

    @property
    def status(self) -> int:
        """The exit status: 1 if MPI cannot spawn or a row fell short."""
        short = any(row.outcome is Outcome.FELL_SHORT for row in self.rows)
        return int(short or self.spawned.outcome in ("fails", "hangs"))

    def results(self) -> list[Result]:
        """Return the lines of the table."""
        checks: list[tuple[str, Callable[[], Held]]] = [
            ("TensorRT-LLM", self._library),
            ("spawn", self._spawn),
            ("sampler", self._sampler),
            ("adapters in CUDA graphs", self._adapters),
        ]
        lines = [run_check("", _STEP, name, check) for name, check in checks]
        short = [row for row in self.rows if row.outcome is Outcome.FELL_SHORT]
        lines += [
            Result("", _STEP, row.id, CheckVerdict.FELL_SHORT, row.detail, {}, 0.0) for row in short
        ]
        return lines

    def to_json(self) -> str:
        """Return the file to send."""
        return json.dumps(scrubbed(self._content()), indent=2) + "\n"

    def _content(self) -> dict[str, Any]:
        machine, spawned = self.machine, self.spawned
        gpus = machine.gpus.devices
        return {
            "versions": {
                "trtllm_truss": __version__,
                "tensorrt_llm": self._version,
                "triton": machine.triton.version if machine.triton else None,
                "open_mpi": spawned.open_mpi,
                "mpi4py": spawned.mpi4py,
                "python": platform.python_version(),
                "cuda": machine.cuda.version,
                "driver": machine.gpus.driver_version,
            },
            "hardware": {
                "cpus": machine.limits.cpus,
                "gpus": len(gpus),
                "compute_capabilities": [list(gpu.compute_capability) for gpu in gpus],
                "gpu_gb": [round(gpu.total_bytes / _GB) for gpu in gpus],
                "shm_gb": round((machine.limits.shm_free_bytes or 0) / _GB, 1),
            },
            "mpi": {
                "spawn": spawned.outcome,
                "workers": spawned.workers,
                "seconds": spawned.seconds,
                "slots": spawned.slots,
                "cores_of_workers": list(spawned.cores),
            },
            "sampler": self._sampler_content(),
            "graphs_apply_adapters": self.installed and graphs_apply_adapters(self._version),
            "assumptions": {row.id: row.outcome.value for row in self.rows},
            "seconds": round(self.seconds, 1),
        }

    @property
    def _version(self) -> str | None:
        return self.installed.version if self.installed else None

    def _sampler_content(self) -> dict[str, Any]:
        if self.installed is None:
            return {"chosen": "none"}
        version, names = self.installed.version, self.installed.facts.get("llm_arguments", ())
        given = sampler_arguments(version, {})
        return {
            "chosen": next((str(v) for v in given.values() if v is not True), _DEFAULT),
            "argument": next(iter(given), _DEFAULT),
            "argument_exists": all(name in names for name in given) if names else None,
            "default": self.installed.facts.get("sampler_default"),
            "samples": why_greedy(version, given) is None,
            "penalties": honours_penalties(version, given),
            "seeds": honours_seeds(version, given),
        }

    def _library(self) -> Held:
        installed = self.installed
        if installed is None:
            raise CannotRun(NOT_INSTALLED)
        if installed.problem:
            raise FellShort(installed.problem)
        held = sum(row.outcome is Outcome.HELD for row in self.rows)
        return Held(f"{installed.version}; {held} of {len(self.rows)} assumptions held so far")

    def _spawn(self) -> Held:
        if self.spawned.outcome == "not run":
            raise CannotRun(self.spawned.sentence)
        if self.spawned.outcome != "works":
            raise FellShort(self.spawned.sentence)
        return Held(self.spawned.sentence)

    def _sampler(self) -> Held:
        if self.installed is None:
            raise CannotRun(NOT_INSTALLED)
        found = self._sampler_content()
        if found["argument_exists"] is False:
            raise FellShort(f"TorchLlmArgs has no {found['argument']}")
        skills = [name for name in ("samples", "penalties", "seeds") if found[name]]
        named = f"{found['argument']}: {found['chosen']}"
        return Held(f"{named} ({', '.join(skills)}), by the release and the signature")

    def _adapters(self) -> Held:
        if self.installed is None:
            raise CannotRun(NOT_INSTALLED)
        if graphs_apply_adapters(self.installed.version):
            return Held("applied, by the release; serve a checkpoint with adapters to see it")
        return Held("ignored, by the release: graphs are off where adapters are configured")


def examine(machine: Machine, folder: Path) -> Examined:
    """Examine a machine in less than a minute; no model is loaded.

    Args:
        machine: its description.
        folder: for temporary files.
    """
    started = time.monotonic()
    workers = max(1, len(machine.gpus.devices))
    with ThreadPoolExecutor() as pool:
        spawned = pool.submit(spawn, machine.runtime, workers, folder)
        installed = pool.submit(find_installed, machine.runtime, folder, IMPORT_LIMIT_S).result()
        rows = Rows(installed)
        results = [*rows.of_library(), *rows.rest()]
        return Examined(machine, spawned.result(), installed, results, time.monotonic() - started)


def scrubbed(value: Any) -> Any:
    """Return a value with each text replaced that is neither a known word nor a version."""
    if isinstance(value, Mapping):
        return {key: scrubbed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(part) for part in value]
    if value is None or isinstance(value, (bool, int, float)) or value in VOCABULARY:
        return value
    public = str(value).partition("+")[0]  # what follows names a build
    return public if PUBLIC_VERSION.fullmatch(public) else _OTHER
