"""Facts about TensorRT-LLM's releases that code asks for by name."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release, exact_release, release

_WITH_PRE_RELEASE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that holds in a range of releases; `facts.toml` has them all."""

    name: str
    since: Release
    until: Release | None = None
    source: str


FACTS = {fact.name: fact for fact in read_table("facts", "facts", Fact)}


def holds(name: str, version: str | Release | None, *, unknown: bool = True) -> bool:
    """Return True if a fact holds in a release.

    Args:
        name: a row of `facts.toml`.
        version: of TensorRT-LLM, as text or as numbers. A text without a number is older than all
            releases.
        unknown: the result for the version None.
    """
    if version is None:
        return unknown
    fact = FACTS[name]
    if isinstance(version, str):
        exact = _WITH_PRE_RELEASE in {len(fact.since), len(fact.until or ())}
        version = exact_release(version) if exact else release(version)
    numbers = version
    return fact.since <= numbers and (fact.until is None or numbers < fact.until)
