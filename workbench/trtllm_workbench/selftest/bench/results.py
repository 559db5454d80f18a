"""Results of checks, and the report that they add up to."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trtllm_truss import __version__
from trtllm_truss.errors import TrussError

Figures = Mapping[str, Any]


class Verdict(str, enum.Enum):
    """The outcome of a check; values are those of the report."""

    HELD = "held"
    FELL_SHORT = "fell short"
    COULD_NOT_RUN = "could not run"


_DECIDING = {Verdict.HELD.value, Verdict.FELL_SHORT.value}


@dataclass(frozen=True, slots=True)
class Held:
    """The return value of a check whose promise held.

    Attributes:
        detail: what was seen, in one line.
        figures: measured values by name, with their units.
    """

    detail: str
    figures: Figures = field(default_factory=dict)


class FellShort(Exception):
    """A promise did not hold; the message names the promise, the value seen and the remedy."""


class CannotRun(Exception):
    """A check does not apply here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check.

    Attributes:
        subject: what was checked, such as "2 ranks"; empty for the machine.
        step: the word of `--only` and `--skip`.
        check: its name in the table.
        verdict: the outcome.
        detail: one line.
        figures: measured values by name.
        seconds: duration of the check.
    """

    subject: str
    step: str
    check: str
    verdict: Verdict
    detail: str
    figures: Figures
    seconds: float

    def row(self) -> str:
        """Return the line of the table."""
        return f"{self.verdict.value:14}{self.check:28}{self.detail}"


def run_check(subject: str, step: str, check: str, function: Callable[[], Held]) -> Result:
    """Run one check; an exception that it does not foresee falls short as well."""
    started = time.monotonic()
    figures: Figures = {}
    try:
        held = function()
        verdict, detail, figures = Verdict.HELD, held.detail, held.figures
    except FellShort as problem:
        verdict, detail = Verdict.FELL_SHORT, str(problem)
    except CannotRun as reason:
        verdict, detail = Verdict.COULD_NOT_RUN, str(reason)
    except TrussError as problem:
        verdict, detail = Verdict.FELL_SHORT, problem.message
    except Exception as problem:  # noqa: BLE001 - one broken check must not hide the others
        verdict, detail = Verdict.FELL_SHORT, f"unexpected {type(problem).__name__}: {problem}"
    seconds = round(time.monotonic() - started, 3)
    return Result(subject, step, check, verdict, " ".join(detail.split()), figures, seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run.

    Attributes:
        machine: properties of this machine; no secrets.
        results: in the order of the run.
        seconds: duration of the run.
        assumptions: results of the rows of the table of assumptions.
    """

    machine: Mapping[str, Any]
    results: Sequence[Result]
    seconds: float
    assumptions: Sequence[Any] = ()

    @property
    def status(self) -> int:
        """The exit status: 1 when a check or a row fell short, or none ran, else 0."""
        verdicts = {result.verdict for result in self.results}
        verdicts |= {Verdict(row.outcome) for row in self.assumptions if row.outcome in _DECIDING}
        return int(Verdict.FELL_SHORT in verdicts or Verdict.HELD not in verdicts)

    def summary(self) -> str:
        """Return the last line of the table."""
        counts = [
            f"{sum(result.verdict is verdict for result in self.results)} {verdict.value}"
            for verdict in Verdict
        ]
        return f"{', '.join(counts)} ({self.seconds:.0f} s)"

    def to_json(self) -> str:
        """Return the report to attach to a bug report."""
        content = {
            "trtllm_truss": __version__,
            "status": self.status,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "checks": [asdict(result) for result in self.results],
            "assumptions": [asdict(row) for row in self.assumptions],
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
