"""A row of the table of assumptions, and the ways to check one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trtllm_truss.releases.versions import Release, release
from trtllm_workbench.selftest.assumptions.installed import Installed
from trtllm_workbench.selftest.bench.bench import Bench
from trtllm_workbench.selftest.bench.results import Held

Served = Literal["engine", "checkpoint"]
"""What the assumption is about."""


@dataclass(frozen=True, slots=True)
class OfLibrary:
    """A check of the installed TensorRT-LLM, without a GPU.

    Attributes:
        how: what it looks at, for the page.
        run: raises `FellShort`, or `CannotRun` where this release has no such part.
    """

    how: str
    run: Callable[[Installed], Held]


@dataclass(frozen=True, slots=True)
class OfServer:
    """A check of a served engine or checkpoint.

    Attributes:
        how: what it does, for the page.
        run: raises `FellShort`, or `CannotRun` where the model lacks what the check needs.
    """

    how: str
    run: Callable[[Bench], Held]


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A row that `selftest` cannot check.

    Attributes:
        why: the reason.
    """

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One behaviour on which the code relies.

    Attributes:
        id: names the row in reports; it never changes.
        sentence: the behaviour.
        source: file and release from which it was read; "assumed" where there is none.
        otherwise: what happens where the sentence is wrong.
        check: how `selftest` checks it.
        since: the first TensorRT-LLM release that it is about; empty for all.
        until: the first one that it is no longer about; empty for none.
    """

    id: str
    sentence: str
    source: str
    otherwise: str
    check: OfLibrary | OfServer | Unchecked
    since: str = ""
    until: str = ""

    @property
    def releases(self) -> str:
        """The releases, for people."""
        if self.since and self.until:
            return f"from {self.since}, before {self.until}"
        if self.since:
            return f"from {self.since}"
        return f"before {self.until}" if self.until else "all"

    @property
    def is_assumed(self) -> bool:
        """True where no source was found for all or some releases."""
        return "assumed" in self.source

    def is_about(self, version: str) -> bool:
        """Return True if the row is about a release."""
        numbers: Release = release(version)
        return (not self.since or release(self.since) <= numbers) and (
            not self.until or numbers < release(self.until)
        )
