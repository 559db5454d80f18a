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

from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

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


def source_lacks(file: str, name: str, text: str) -> Check:
    """Check that a function of the installed package does not have a text."""

    def run(installed: Installed) -> Held:
        if text in installed.source(file, name):
            raise FellShort(f"{name} of {file} has {text!r}")
        return Held(f"{name} of {file} does not have {text!r}")

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
