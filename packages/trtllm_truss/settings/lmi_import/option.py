"""What an option of LMI is, and how its values are read."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trtllm_truss.literals import BOOLEANS


class Fate(str, enum.Enum):
    """What becomes of an option."""

    MAPPED = "mapped"
    NOT_NEEDED = "not needed any more"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: LMI's, without `option.`.
        fate: what becomes of it.
        target: the key below `model_metadata` that it becomes.
        prebuilt: the key that it becomes instead where the engine is there already; an option of
            the build without one is then not needed.
        convert: reads its value; raises ValueError for one that is none.
        methods: the values of `quantize` with which it is read; empty means always.
        only: the values for which `fate` holds; any other is unsupported. Empty means all.
        why: the reason, as a sentence without its dot; empty where the target says it.
    """

    name: str
    fate: Fate = Fate.MAPPED
    target: str = ""
    prebuilt: str = ""
    convert: Callable[[str], object] = str
    methods: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    why: str = ""


def flag(text: str) -> bool:
    """A boolean as LMI writes it."""
    if text.lower() not in BOOLEANS:
        raise ValueError("it must be true or false")
    return BOOLEANS[text.lower()]


@dataclass(frozen=True, slots=True)
class Words:
    """Reads one of a few words, whatever its case."""

    meanings: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, text: str) -> object:
        """The meaning of a word."""
        if text.lower() not in self.meanings:
            raise ValueError(f"it must be one of {', '.join(self.meanings)}")
        return self.meanings[text.lower()]


def commas(text: str) -> str:
    """A JSON list of numbers as `config.pbtxt` writes it."""
    return text.strip("[] ").replace(" ", "")
