"""Rules of LMI's options and parsers of their values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trtllm_truss.literals import BOOLEANS


class Outcome(str, enum.Enum):
    MAPPED = "mapped"
    NOT_NEEDED = "not needed any more"
    UNSUPPORTED = "unsupported"
    NOT_TAKEN = "not taken from the repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """The rule of one option.

    Attributes:
        name: LMI's name, without `option.`.
        outcome: its outcome.
        target: its key below `model_metadata`.
        prebuilt: its key for a prebuilt engine; without one, such an engine does not need it.
        checkpoint: its key for a checkpoint in the LLM API, whatever `outcome` is for engines.
            Without one, a checkpoint takes `prebuilt`, or a `target` outside the build.
        convert: parses its value; raises ValueError for an invalid one.
        methods: values of `quantize` that use it; empty means all.
        only: values for which `outcome` holds, others are unsupported; empty means all.
        reason: the reason, as a sentence without its dot; may be empty with a target.
        operator_says: the option of `init` for a choice that belongs to the operator: to run code,
            or to use another repository. Settings inside a repository cannot make it.
    """

    name: str
    outcome: Outcome = Outcome.MAPPED
    target: str = ""
    prebuilt: str = ""
    checkpoint: str = ""
    convert: Callable[[str], object] = str
    methods: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    reason: str = ""
    operator_says: str = ""


def flag(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError("it must be true or false")
    return BOOLEANS[text.lower()]


def inverted_flag(text: str) -> bool:
    return not flag(text)


def default_object(text: str) -> dict[str, object] | None:
    """Convert true to an object with all defaults, and false to null, which turns it off."""
    return {} if flag(text) else None


@dataclass(frozen=True, slots=True)
class WordMap:
    """Parses one of a few words, in any case."""

    meanings: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, text: str) -> object:
        if text.lower() not in self.meanings:
            raise ValueError(f"it must be one of {', '.join(self.meanings)}")
        return self.meanings[text.lower()]


def comma_separated(text: str) -> str:
    """Convert a JSON list of numbers for `config.pbtxt`."""
    return text.strip("[] ").replace(" ", "")
