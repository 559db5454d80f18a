"""Run the checks of the table: on the installed library, and on each served model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from trtllm_truss.machine.runtime import Runtime
from trtllm_truss.releases.facts import holds
from trtllm_truss.settings.child_environment import child_environment
from trtllm_workbench.selftest.assumptions.checkpoints import CHECKPOINTS
from trtllm_workbench.selftest.assumptions.engines import ENGINES
from trtllm_workbench.selftest.assumptions.installed import Installed
from trtllm_workbench.selftest.assumptions.model import (
    Assumption,
    OfLibrary,
    OfServer,
    Served,
    Unchecked,
)
from trtllm_workbench.selftest.bench.bench import Bench
from trtllm_workbench.selftest.bench.results import Figures, Verdict, run_check
from trtllm_workbench.selftest.probes import library as library_program
from trtllm_workbench.selftest.probing import probe
from trtllm_workbench.selftest.spawning import kill_a_worker

STEP = "assumptions"
TABLES: tuple[tuple[Served, tuple[Assumption, ...]], ...] = (
    ("engine", ENGINES),
    ("checkpoint", CHECKPOINTS),
)
NOT_INSTALLED = "TensorRT-LLM is not installed"
_IMPORT_LIMIT_S = 120.0
_NO_USAGE_STATISTICS = {"TRTLLM_NO_USAGE_STATS": "1", "TELEMETRY_DISABLED": "true"}
_LAST_CHARACTERS = 300


class Outcome(str, Enum):
    """The outcome of a row; values are those of the report."""

    HELD = "held"
    FELL_SHORT = "fell short"
    SKIPPED = "skipped"
    NOT_CHECKED = "not checked"
    NOT_RUN = "not run"


_OUTCOMES = {
    Verdict.HELD: Outcome.HELD,
    Verdict.FELL_SHORT: Outcome.FELL_SHORT,
    Verdict.COULD_NOT_RUN: Outcome.SKIPPED,
}


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row.

    Attributes:
        id: of the row.
        about: engines or checkpoints.
        subject: the served model; empty for the library.
        outcome: what came out.
        detail: one line.
        figures: measured values by name.
    """

    id: str
    about: Served
    subject: str
    outcome: Outcome
    detail: str
    figures: Figures = field(default_factory=dict)


def find_installed(
    runtime: Runtime, folder: Path, limit_s: float = _IMPORT_LIMIT_S
) -> Installed | None:
    """Describe the TensorRT-LLM of this machine; None if none is installed.

    Args:
        runtime: what was found of it.
        folder: where its Python runs.
        limit_s: the time that its import may take.
    """
    if not runtime.installed or runtime.version is None:
        return None
    if runtime.python is None:
        problem = "no Python of this machine can import tensorrt_llm"
        return Installed(runtime.version, library=runtime.library, problem=problem)
    command = [str(runtime.python), str(Path(library_program.__file__))]
    environment = {**child_environment(os.environ), **_NO_USAGE_STATISTICS}
    with ThreadPoolExecutor() as pool:
        death = pool.submit(kill_a_worker, runtime, folder)
        ended = probe(command, environment, folder, limit_s)
    if (facts := ended.found) is None:
        last = " ".join(ended.output.split())[-_LAST_CHARACTERS:]
        problem = f"tensorrt_llm cannot be imported: {last}"
        if ended.status is None:
            problem = f"the import of tensorrt_llm took more than {limit_s:.0f} s"
        return Installed(runtime.version, library=runtime.library, problem=problem)
    facts = {**facts, **death.result()}
    package = Path(facts["folder"])
    library = runtime.library or package / "libs" / "libtensorrt_llm.so"
    return Installed(str(facts["version"]), package, library if library.is_file() else None, facts)


@dataclass(slots=True)
class Rows:
    """The rows of a run.

    Attributes:
        installed: TensorRT-LLM; None if there is none.
        results: so far.
    """

    installed: Installed | None
    results: list[RowResult] = field(default_factory=list)

    def of_library(self) -> Iterator[RowResult]:
        """Check the rows about the installed library, and state why others are not checked."""
        for about, row in _rows():
            if isinstance(row.check, Unchecked):
                yield self._add(row, about, Outcome.NOT_CHECKED, row.check.why)
            elif self.installed is None:
                yield self._add(row, about, Outcome.NOT_RUN, NOT_INSTALLED)
            elif reason := _not_about(about, row, self.installed.version):
                yield self._add(row, about, Outcome.SKIPPED, reason)
            elif isinstance(row.check, OfLibrary):
                yield self._run(row, about, "", partial(row.check.run, self.installed))

    def of_server(self, subject: str, bench: Bench) -> Iterator[RowResult]:
        """Check the rows about a served model; none without TensorRT-LLM."""
        if self.installed is None:
            return
        for about, row in _rows():
            is_about = not _not_about(about, row, self.installed.version)
            if about == bench.kind and is_about and isinstance(row.check, OfServer):
                yield self._run(row, about, subject, partial(row.check.run, bench))

    def rest(self) -> Iterator[RowResult]:
        """Skip the rows about models that were not served."""
        done = {(result.about, result.id) for result in self.results}
        for about, row in _rows():
            if (about, row.id) not in done:
                yield self._add(row, about, Outcome.SKIPPED, f"no {about} was served")

    def _run(self, row: Assumption, about: Served, subject: str, check: partial) -> RowResult:  # type: ignore[type-arg]
        found = run_check(subject, STEP, row.id, check)
        return self._add(row, about, _OUTCOMES[found.verdict], found.detail, subject, found.figures)

    def _add(
        self,
        row: Assumption,
        about: Served,
        outcome: Outcome,
        detail: str,
        subject: str = "",
        figures: Figures | None = None,
    ) -> RowResult:
        result = RowResult(row.id, about, subject, outcome, detail, figures or {})
        self.results.append(result)
        return result


def _rows() -> Iterator[tuple[Served, Assumption]]:
    for about, table in TABLES:
        for row in table:
            yield about, row


def _not_about(about: Served, row: Assumption, version: str) -> str:
    """Return why a row is not about a release; empty if it is."""
    if not holds("serves_engines" if about == "engine" else "serves_checkpoints", version):
        return f"this release serves no {about}s"
    return "" if row.is_about(version) else f"it is about other releases: {row.releases}"
