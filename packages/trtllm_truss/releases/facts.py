"""Facts about TensorRT-LLM's releases that code asks for by name."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release, exact_release, release

_WITH_PRE_RELEASE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that holds in a range of releases."""

    name: str
    since: Release
    until: Release | None = None
    source: str

    def holds(self, version: str | Release | None, *, unknown: bool = True) -> bool:
        """Return True if the fact holds in a release.

        Args:
            version: of TensorRT-LLM, as text or as numbers. A text without a number is older than
                all releases.
            unknown: the result for the version None.
        """
        if version is None:
            return unknown
        if isinstance(version, str):
            exact = _WITH_PRE_RELEASE in {len(self.since), len(self.until or ())}
            version = exact_release(version) if exact else release(version)
        return self.since <= version and (self.until is None or version < self.until)


def read_facts(file: str, section: str) -> dict[str, Fact]:
    """Read a section whose rows are facts about things, by the names of these."""
    return {fact.name: fact for fact in read_table(file, section, Fact)}


FACTS = read_facts("facts", "facts")


def holds(name: str, version: str | Release | None, *, unknown: bool = True) -> bool:
    """Return True if a row of `facts.toml` holds in a release (`Fact.holds`)."""
    return FACTS[name].holds(version, unknown=unknown)
