"""Decode ids to text piece by piece, exactly as if all ids were decoded at once.

The `tokenizers` library first drops unknown ids and hidden special tokens, then passes the
remaining tokens to its decoder. Three classes cover all decoders:

* `ByteDecoding`: byte-level BPE. A token is a few bytes, and the text is their UTF-8. It is exact
  because Python and Rust replace invalid UTF-8 alike, by the Unicode standard's "maximal subparts".
* `TokenDecoding`: the decoders of SentencePiece, Unigram and WordPiece models. A token's text
  depends on whether it is first, and tokens like `<0xE6>` depend on the surrounding run of such
  tokens: the run is one string if all of it is valid UTF-8, otherwise one U+FFFD per token.
* `WholeDecoding`: any other decoder. Nothing is certain before the end, so all text is returned
  then.

The library's own `DecodeStream` is not used: it holds back text that ends in a genuine U+FFFD,
cannot be flushed, and fails on some runs of byte tokens.
"""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from enum import Enum
from functools import partial
from typing import Any, Protocol

from tokenizers import Tokenizer

from trtllm_truss.literals import token_bytes

logger = logging.getLogger(__name__)

_PYO3 = "pyo3_runtime"  # its PanicException cannot be imported


class LibraryPanic(RuntimeError):
    """A panic in a Rust library: a defect of the library, or unexpected data."""


class panics_as_errors(ContextDecorator):  # used like a function
    """Raise `LibraryPanic` for a panic in the block or the decorated function.

    PyO3 derives its exception from `BaseException`.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(error).__module__ == _PYO3 and not isinstance(error, Exception):
            raise LibraryPanic(f"a library panicked: {error}") from None


class TokenKind(Enum):
    DROPPED = "hidden or unknown: the decoder never sees it"
    BYTE = "one byte of a run"


class ByteTable(dict[int, bytes]):
    """The bytes of each visible token, filled lazily."""

    def __init__(self, backend: Tokenizer, hidden: frozenset[str]) -> None:
        super().__init__()
        self._backend = backend
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token in self._hidden:
            return b""
        self[token_id] = value = token_bytes(token)
        return value


class TextTable(dict[int, str | TokenKind]):
    """The text that each visible token adds after another one, filled lazily."""

    def __init__(
        self, backend: Tokenizer, hidden: frozenset[str], anchor: int, has_bytes: bool
    ) -> None:
        super().__init__()
        self._backend = backend
        self._hidden = hidden
        self._has_bytes = has_bytes
        self.anchor = anchor
        self.anchor_text = backend.decode([anchor])

    def __missing__(self, token_id: int) -> str | TokenKind:
        token = self._backend.id_to_token(token_id)
        if token is None or token in self._hidden:
            return TokenKind.DROPPED
        # Broader than the decoder's rule: a false positive delays text, never corrupts it.
        is_byte = self._has_bytes and "<0x" in token
        value: str | TokenKind = TokenKind.BYTE if is_byte else self._after_anchor([token_id])
        self[token_id] = value
        return value

    @panics_as_errors()
    def text_after(self, context: list[int], context_text: str, ids: list[int]) -> str:
        """Return the text of ids that follow others with known text."""
        whole = self._backend.decode([*context, *ids], skip_special_tokens=bool(self._hidden))
        return whole[len(context_text) :]

    def is_empty(self, ids: list[int]) -> bool:
        """Return True if ids add nothing to a text that has begun."""
        return not self._after_anchor(ids)

    def _after_anchor(self, ids: list[int]) -> str:
        return self.text_after([self.anchor], self.anchor_text, ids)


def special_tokens(backend: Tokenizer) -> frozenset[str]:
    """Return the contents that never appear in decoded text."""
    added = backend.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


class Decoding(Protocol):
    """Decoding of one text. The joined results of `push` and `flush` are the whole decoding."""

    def push(self, ids: Sequence[int]) -> str:
        """Add further ids, and return the text that has become certain."""

    def flush(self) -> str: ...


def choose_decoding(
    backend: Tokenizer, *, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset()
) -> Callable[[], Decoding]:
    """Choose the exact decoding for a tokenizer.

    Args:
        backend: the tokenizer; must not change afterwards.
        shown: special tokens to include.

    Returns:
        A function that starts a text. All texts share its tables.
    """
    hidden = special_tokens(backend) - shown if skip_special_tokens else frozenset()
    stages = _decoder_stages(backend)
    if [stage["type"] for stage in stages] == ["ByteLevel"]:
        return partial(ByteDecoding, ByteTable(backend, hidden))
    anchor = _plain_token(backend)
    if anchor is not None and _is_local(stages):
        has_bytes = any(stage["type"] == "ByteFallback" for stage in stages)
        return partial(TokenDecoding, TextTable(backend, hidden, anchor, has_bytes))
    logger.warning("this tokenizer cannot stream; text is sent when generation ends")
    return partial(WholeDecoding, backend, hidden)


class ByteDecoding:
    """Decoding of byte-level BPE: holds back at most an incomplete character."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        table = self._table
        return self._utf8.decode(b"".join([table[token_id] for token_id in ids]))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class TokenDecoding:
    """Decoding token by token: holds back at most a run of byte tokens."""

    def __init__(self, table: TextTable) -> None:
        self._table = table
        self._run: list[int] = []
        # Ids to decode before others, which gives these the text of their position: at first the
        # few ids whose text is still empty, afterwards any token with text.
        self._context: list[int] = []
        self._context_text = ""

    def push(self, ids: Sequence[int]) -> str:
        table = self._table
        pieces = []
        for token_id in ids:
            piece = table[token_id]
            if piece is TokenKind.DROPPED:
                continue
            if piece is TokenKind.BYTE:
                self._run.append(token_id)
            elif self._run or not self._context_text:
                self._run.append(token_id)
                pieces.append(self._settle())
            else:
                pieces.append(piece)
        return "".join(pieces)

    def flush(self) -> str:
        return self._settle()

    def _settle(self) -> str:
        run, self._run = self._run, []
        text = self._table.text_after(self._context, self._context_text, run)
        if not self._context_text:
            if text:
                self._context, self._context_text = [self._table.anchor], self._table.anchor_text
            elif not self._context or not self._table.is_empty(run):
                self._context += run
        return text


class WholeDecoding:
    def __init__(self, backend: Tokenizer, hidden: frozenset[str]) -> None:
        self._backend = backend
        self._hidden = {backend.token_to_id(token) for token in hidden}
        self._ids: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        self._ids += (token_id for token_id in ids if token_id not in self._hidden)
        return ""

    @panics_as_errors()
    def flush(self) -> str:
        ids, self._ids = self._ids, []
        return self._backend.decode(ids, skip_special_tokens=False)


def _decoder_stages(backend: Tokenizer) -> list[dict[str, Any]]:
    """Return the decoder as a flat list of its stages in the form of `tokenizer.json`."""
    if backend.decoder is None:
        return []
    stages = _flatten(json.loads(backend.decoder.__getstate__()))
    while stages and stages[-1]["type"] == "Fuse":
        # Joins tokens, as the library does anyway.
        stages.pop()
    return stages


def _flatten(stage: dict[str, Any]) -> list[dict[str, Any]]:
    if stage["type"] != "Sequence":
        return [stage]
    return [part for inner in stage["decoders"] for part in _flatten(inner)]


def _is_local(stages: list[dict[str, Any]]) -> bool:
    """Return True if a token's text depends only on being first and on its run of byte tokens."""
    is_fused = False
    for stage in stages:
        kind = stage["type"]
        if kind == "Fuse":
            is_fused = True
        elif kind == "Strip":
            if stage["stop"]:
                return False
        elif kind == "Replace":
            # In the joined text a longer pattern could match across tokens.
            if is_fused and not (len(stage["pattern"].get("String", "")) == 1 and stage["content"]):
                return False
        elif is_fused or kind not in {"ByteFallback", "Metaspace", "WordPiece"}:
            return False
    return True


def _plain_token(backend: Tokenizer) -> int | None:
    """Return a token that decodes to itself, as a substitute for preceding text."""
    special = special_tokens(backend)
    letters = sorted(
        token_id
        for token, token_id in backend.get_vocab().items()
        if token.isalnum() and token not in special
    )
    return next((id_ for id_ in letters if backend.decode([id_]) == backend.id_to_token(id_)), None)
