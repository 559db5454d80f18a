"""The table of request fields, with their types, ranges, names, tensors and meanings.

A row is an attribute of `SamplingFields`, or an item of `OPTIONS`. The bodies of all protocols, the
engine's tensors, the readers of our backends, the check against the engine and the pages follow
from the rows. The contract specifies which release has a tensor, and a kind of engine which fields
it refuses. Triton's processes import this module, so it imports no library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

INT32_MAX = 2**31 - 1
LEAST = 1e-6
"""Least positive number: the engine's 32-bit floats round smaller ones to 0."""

ProtocolName = Literal["predict", "openai", "messages", "lmi"]
Texts = tuple[str, ...]
Ids = tuple[int, ...]
Effect = Literal["temperature", "limit", "penalty", "end", "beams", "seed"]

T = TypeVar("T")
Unset = TypeVar("Unset")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included unless `above` is set; None means no limit."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def holds(self, value: float) -> bool:
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return False
        return self.high is None or value <= self.high

    @property
    def rule(self) -> str:
        """Return the range in words: "from 0 to 1"."""
        if self.above:
            return f"above {self.low}"
        return f"of {self.low} or more" if self.high is None else f"from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """A row of the table.

    Attributes:
        name: field name in bodies.
        kind: type of the value.
        meaning: sentence for the pages.
        range: range of a number in a body. A protocol may use a narrower one.
        zero: another number that means 0, which sets no limit.
        default: value if omitted; None is not sent, so that the engine's default applies.
        names: names in protocols that use another one; None where the field is missing.
        attribute: attribute of `Sampling` or `GenerationRequest`, if not the name.
        tensors: the engine's inputs, newest name first.
        tensor_range: range of the inputs, if not `range`.
        engine_default: value of an absent input.
        effect: what a sampling field changes: temperature, candidate tokens, their logits, the end,
            beam scores or random numbers.
        with_beams: beam search supports it.
    """

    name: str
    kind: Any
    meaning: str
    range: Range = Range()
    zero: int | None = None
    default: Any = None
    names: Mapping[ProtocolName, str | None] = field(default_factory=dict)
    attribute: str = ""
    tensors: tuple[str, ...] = ()
    tensor_range: Range | None = None
    engine_default: float = 0
    effect: Effect | None = None
    with_beams: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "attribute", self.attribute or self.name)

    def changes(self, value: float) -> bool:
        """Return True if a sampling value has an effect in the engine."""
        if self.effect == "end":
            return value > self.engine_default
        return value != self.engine_default

    def has_effect(self, value: Any) -> bool:
        """Return True if a request's value changes its output; None is an open field."""
        if self.effect is not None:
            return value is not None and self.changes(value)
        return bool(value) if isinstance(self.default, tuple) else bool(value != self.default)

    def name_in(self, protocol: ProtocolName) -> str | None:
        return self.names.get(protocol, self.name)


def _row(kind: type[T], meaning: str, **facts: Any) -> T:
    """Declare an attribute of `SamplingFields` together with its row."""
    value: T = field(default=None, metadata={"kind": kind, "meaning": meaning, **facts})  # type: ignore[assignment]
    return value


@dataclass(slots=True)
class SamplingFields(Generic[Unset]):
    """The sampling fields.

    `Unset` is None in a request, whose open fields are not sent, and `NoReturn` in an engine, where
    all have values.
    """

    temperature: float | Unset = _row(
        float,
        "0 is greedy.",
        range=Range(0, 100),
        tensors=("temperature",),
        tensor_range=Range(0),
        engine_default=1.0,
        effect="temperature",
        with_beams=False,
    )
    top_k: int | Unset = _row(
        int,
        "Number of tokens to sample from, at most 1024; 1 is greedy, 0 and -1 set no limit.",
        range=Range(0, 1024),
        zero=-1,
        tensors=("runtime_top_k",),
        effect="limit",
    )
    top_p: float | Unset = _row(
        float,
        "Cumulative probability to sample from; 0 is greedy.",
        range=Range(0, 1),
        tensors=("runtime_top_p",),
        engine_default=0.0,
        effect="limit",
    )
    min_p: float | Unset = _row(
        float,
        "Least probability of a sampled token, relative to the likeliest one's; 0 sets no limit.",
        range=Range(0, 1),
        tensors=("min_p",),
        engine_default=0.0,
        effect="limit",
    )
    repetition_penalty: float | Unset = _row(
        float,
        "Divides the logits of tokens that have occurred.",
        range=Range(LEAST, 100),
        tensors=("repetition_penalty",),
        tensor_range=Range(0, above=True),
        engine_default=1.0,
        effect="penalty",
        with_beams=False,
    )
    presence_penalty: float | Unset = _row(
        float,
        "Subtracted once from the logits of tokens that have occurred.",
        range=Range(-2, 2),
        tensors=("presence_penalty",),
        engine_default=0.0,
        effect="penalty",
        with_beams=False,
    )
    frequency_penalty: float | Unset = _row(
        float,
        "Subtracted from the logits of tokens for each occurrence.",
        range=Range(-2, 2),
        tensors=("frequency_penalty",),
        engine_default=0.0,
        effect="penalty",
        with_beams=False,
    )
    length_penalty: float | Unset = _row(
        float,
        "Exponent of the length in beam search.",
        range=Range(0, 100),
        tensors=("len_penalty",),
        tensor_range=Range(0),
        engine_default=0.0,
        effect="beams",
    )
    min_tokens: int | Unset = _row(
        int,
        "Minimum number of tokens to generate.",
        range=Range(0, INT32_MAX),
        names={"lmi": "min_length"},
        tensors=("min_tokens", "min_length"),
        tensor_range=Range(0),
        engine_default=1,
        effect="end",
        with_beams=False,
    )
    seed: int | Unset = _row(
        int,
        "Makes sampling repeatable; random by default.",
        range=Range(0, 2**64 - 1),
        tensors=("seed", "random_seed"),
        tensor_range=Range(),
        effect="seed",
    )


@dataclass(slots=True)
class Sampling(SamplingFields[None]):
    """The sampling of a request. None is not sent, so the engine's default applies."""


SAMPLING = tuple(RequestField(name=each.name, **each.metadata) for each in fields(SamplingFields))
"""The rows of sampling, in the order of its attributes."""

OPTIONS = (
    RequestField(
        name="stop_words",
        kind=Texts,
        meaning="Texts that finish the choice just before them.",
        default=(),
        names={"openai": "stop", "messages": "stop_sequences", "lmi": "stop_sequences"},
    ),
    RequestField(
        name="stop_token_ids",
        kind=Ids,
        meaning="Token ids that finish the choice just before them.",
        default=(),
    ),
    RequestField(
        name="bad_words",
        kind=Texts,
        meaning="Texts that must not be generated.",
        default=(),
        names={"lmi": "bad_sequences"},
        tensors=("bad_words_list",),
    ),
    RequestField(
        name="beam_width",
        kind=int,
        meaning="Number of beams, up to the engine's limit. With more than one, the text is sent "
        "at the end.",
        range=Range(1, INT32_MAX),
        default=1,
        names={"lmi": None},
        tensors=("beam_width",),
    ),
    RequestField(
        name="ignore_eos",
        kind=bool,
        meaning="Continue past the model's EOS token.",
        default=False,
        names={"lmi": "ignore_eos_token"},
    ),
    RequestField(
        name="disable_any_whitespace",
        kind=bool,
        meaning="If false, schema-constrained JSON may contain arbitrary, even endless, "
        "whitespace.",
        default=True,
        attribute="fixes_blanks",
    ),
    RequestField(
        name="include_stop_str_in_output",
        kind=bool,
        meaning="Include the stop word in the text.",
        default=False,
        names={"predict": None},
        attribute="include_stop",
    ),
    RequestField(
        name="skip_special_tokens",
        kind=bool,
        meaning="Omit special tokens from the text.",
        default=True,
        names={"predict": None},
    ),
    RequestField(
        name="truncate_prompt_tokens",
        kind=int,
        meaning="Keep only the prompt's last tokens.",
        range=Range(1, INT32_MAX),
        names={"predict": None, "lmi": "truncate"},
        attribute="truncate_prompt",
    ),
    RequestField(
        name="lora_task_id",
        kind=int,
        meaning="The adapter to generate with.",
        range=Range(0, 2**64 - 1),
        names={"predict": None},
        tensors=("lora_task_id",),
    ),
)
"""Rows of further attributes of `GenerationRequest`."""


def rows_of(protocol: ProtocolName) -> dict[str, RequestField]:
    """Return the rows that a protocol has, by its names."""
    named = ((row.name_in(protocol), row) for row in (*SAMPLING, *OPTIONS))
    return {name: row for name, row in named if name is not None}
