"""The installed TensorRT-LLM: what its Python says of itself, its source, the text of its library.

Checks of rows are built from these three.
"""

from __future__ import annotations

import ast
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.engines.checkpoint.weights import ARCHITECTURES
from trtllm_truss.releases.tables import Release, release
from trtllm_workbench.selftest.served_model import CannotRun, FellShort, Held

_SHOWN_NAMES = 8


@dataclass(frozen=True, slots=True)
class Installed:
    """TensorRT-LLM as a probe found it.

    Attributes:
        version: `tensorrt_llm.__version__`, or that of its package.
        folder: of the package; None where it has no Python part.
        library: ``libtensorrt_llm.so``; None if it was not found.
        facts: the line of `probes/library.py`; empty if it failed.
        problem: why it failed.
    """

    version: str
    folder: Path | None = None
    library: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def fact(self, name: str) -> Any:
        """Return one fact.

        Raises:
            CannotRun: this release lacks the part, or it could not be imported.
        """
        if name not in self.facts:
            reason = self.facts.get("problems", {}).get(name, "the probe did not look")
            raise CannotRun(self.problem or f"{name.replace('_', ' ')}: {reason}")
        return self.facts[name]

    def source(self, file: str, name: str) -> str:
        """Return the source of the functions or classes of a name, without comments.

        Args:
            file: below the package.
            name: of the function or class; a method's follows its class and a dot.

        Raises:
            CannotRun: this release has no such file or name.
        """
        path = (self.folder or Path()) / file
        if self.folder is None or not path.is_file():
            raise CannotRun(f"this release has no {file}")
        nodes: Iterable[ast.AST] = [ast.parse(path.read_text(encoding="utf-8", errors="replace"))]
        for part in name.split("."):
            found = [
                child
                for node in nodes
                for child in ast.walk(node)
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and child.name == part
            ]
            if not found:
                raise CannotRun(f"{file} of this release has no {name}")
            nodes = found
        return "\n".join(map(ast.unparse, nodes))

    def library_text(self, text: str) -> bool:
        """Return True if a text is among the library's.

        Raises:
            CannotRun: there is no library.
        """
        if self.library is None:
            raise CannotRun("libtensorrt_llm.so was not found")
        with (
            self.library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(text.encode()) >= 0


Check = Callable[[Installed], Held]


def library_says(*texts: str) -> Check:
    """Check that the C++ library has texts, which only the code with the behaviour writes."""

    def run(installed: Installed) -> Held:
        if missing := [text for text in texts if not installed.library_text(text)]:
            raise FellShort(f"libtensorrt_llm.so does not have the text {missing[0]!r}")
        return Held(f"libtensorrt_llm.so has the text {texts[0]!r}")

    return run


def source_has(file: str, name: str, *texts: str) -> Check:
    """Check that a function of the installed package has certain texts."""

    def run(installed: Installed) -> Held:
        source = installed.source(file, name)
        if missing := [text for text in texts if text not in source]:
            raise FellShort(f"{name} of {file} does not have {missing[0]!r}")
        return Held(f"{name} of {file} has {', '.join(map(repr, texts))}")

    return run


def is_true(name: str, sentence: str) -> Check:
    """Check a fact that is true or false."""

    def run(installed: Installed) -> Held:
        if not installed.fact(name):
            raise FellShort(f"not so: {sentence}")
        return Held(sentence)

    return run


def names_missing(needed: Iterable[str], found: Iterable[str]) -> str:
    """Return the names that are missing, shortened; empty if none is."""
    missing = sorted(set(needed) - set(found))
    more = len(missing) - _SHOWN_NAMES
    return ", ".join(missing[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


_SAMPLERS_OF_1_0 = ("enable_trtllm_sampler", "enable_mixed_sampler")
_ENDS_PARENTS: Release = (5,)
_STOP_FIELDS = {"stop", "stop_token_ids"}


def architectures(since: Release) -> Check:
    """Check that every architecture of a release is registered."""

    def run(installed: Installed) -> Held:
        names = [name for name, row in ARCHITECTURES.items() if row.since == since]
        if missing := names_missing(names, installed.fact("architectures")):
            raise FellShort(f"not registered: {missing}")
        return Held(f"{len(names)} architectures are registered", {"count": len(names)})

    return run


def stop_fields(installed: Installed) -> Held:
    """Look for another field of `SamplingParams` that takes stop words."""
    fields = [name for name in installed.fact("sampling_fields") if name.startswith("stop")]
    if more := names_missing(fields, _STOP_FIELDS):
        raise FellShort(f"SamplingParams has {more}")
    return Held(f"SamplingParams has {', '.join(fields)} only")


def named_samplers(installed: Installed) -> Held:
    """Look for the arguments that choose a sampler in 1.0."""
    if missing := names_missing(_SAMPLERS_OF_1_0, installed.fact("llm_arguments")):
        raise FellShort(f"TorchLlmArgs has no {missing}")
    return Held(f"TorchLlmArgs has {' and '.join(_SAMPLERS_OF_1_0)}")


def graph_sizes(installed: Installed) -> Held:
    """Compare the largest size of a padded CUDA graph with the batch."""
    sizes, batch = installed.fact("graph_sizes"), installed.fact("graph_batch")
    if max(sizes) < batch:
        raise FellShort(f"the largest graph has {max(sizes)} of {batch} requests")
    return Held(f"{len(sizes)} sizes up to {max(sizes)}", {"sizes": len(sizes)})


def death_of_a_worker(installed: Installed) -> Held:
    """Compare what became of a killed worker's parent with what Open MPI's release does."""
    version, parent = installed.fact("open_mpi"), installed.fact("parent_of_a_dead_worker")
    expected = "is ended" if release(version) >= _ENDS_PARENTS else "waits"
    if parent != expected:
        raise FellShort(f"with Open MPI {version} the parent {parent}; expected: {expected}")
    return Held(f"with Open MPI {version} the parent {parent}")
