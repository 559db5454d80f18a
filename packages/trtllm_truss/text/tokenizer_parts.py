"""Parts of a stored tokenizer, and panics of the Rust library behind it as errors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ContextDecorator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tokenizers import Tokenizer

_PYO3 = "pyo3_runtime"  # its PanicException cannot be imported


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as stored on disk.

    Attributes:
        backend: the tokenizer of the `tokenizers` library, its special tokens marked.
        eos_ids: every id that ends a text, the tokenizer's own first.
        bos_id: the id that begins a text, if any.
        pad_id: the id that fills up a batch, if any.
        named_tokens: contents by role (`bos_token`, `eos_token` …), for chat templates.
        chat_templates: Jinja sources by name; the usual one is called `default`.
        sampling: the authors' sampling defaults, by the names of `transformers` (`temperature`,
            `top_p` …); values unchecked.
    """

    backend: Tokenizer
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


class LibraryPanic(RuntimeError):
    """A panic in a Rust library: a defect of the library, or unexpected data."""


class panics_as_errors(ContextDecorator):  # used like a function
    """Raise `LibraryPanic` for a panic in the block or the decorated function.

    PyO3 derives its exception from `BaseException`.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if type(error).__module__ == _PYO3 and not isinstance(error, Exception):
            raise LibraryPanic(f"a library panicked: {error}") from None
