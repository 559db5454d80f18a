"""What the two stored forms of a tokenizer have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

_PYO3 = "pyo3_runtime"  # its PanicException can be imported from nowhere


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as it was found on disk.

    Attributes:
        backend: the tokenizer itself, its special tokens marked as such.
        eos_ids: every id that ends a text, the tokenizer's own first.
        bos_id: the id that begins a text, if there is one.
        pad_id: the id that fills up a batch, if there is one.
        named_tokens: contents by role (`bos_token`, `eos_token` …), as chat templates use them.
        chat_templates: Jinja sources by name; the usual one is called `default`.
        sampling: how the model's authors would draw tokens, by the names of `transformers`
            (`temperature`, `top_p` …); values as they were found.
    """

    backend: Tokenizer
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


class LibraryPanic(RuntimeError):
    """A library has panicked: a defect of its own, or data that it does not expect."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises `LibraryPanic` for a panic in the block, or in the function that it decorates.

    PyO3 derives its exception from `BaseException`.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as panic:
        if type(panic).__module__ != _PYO3:
            raise
        raise LibraryPanic(f"a library panicked: {panic}") from None
