"""Text of one answer: ids in, visible text out, up to a stop word.

Decoding is incremental and exactly equal to decoding all ids at once. The `tokenizers` library
first drops ids that it does not know, and special tokens unless they are to show, then passes the
remaining tokens to its decoder. Three classes cover every decoder:

* `ByteDecoding`: byte-level BPE. A token is a few bytes, the text is their UTF-8. Exact because
  Python and Rust replace invalid UTF-8 alike, by the Unicode standard's "maximal subparts".
* `TokenDecoding`: the decoders of SentencePiece, Unigram and WordPiece models. A token's text
  depends on being first, and tokens like `<0xE6>` depend on the run of such tokens around them:
  the run is one string if all of it is valid UTF-8, else one U+FFFD for each.
* `WholeDecoding`: any other decoder. Nothing is certain before the end, so all text comes then.

The library's own `DecodeStream` is not used: it keeps back text that ends in a genuine U+FFFD,
cannot be flushed, and fails on some runs of byte tokens.

All stop words are followed at once (Aho and Corasick, "Efficient string matching", CACM 18(6),
1975): a state of the automaton is the longest suffix of the text that is a prefix of a stop word,
which is exactly the text to hold back. The work is linear in the text, for any number of words.
"""

from __future__ import annotations

import codecs
import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ContextDecorator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tokenizers import Tokenizer

from trtllm_truss.literals import token_bytes

if TYPE_CHECKING:
    from trtllm_truss.text.tokenizer import TextTokenizer

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
    """The bytes of each visible token, filled as tokens occur."""

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
    """The text of each visible token after another one, filled as tokens occur."""

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
        # Wider than the decoder's own rule: to hold back too much is late, never wrong.
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
    """Return the contents that never show in decoded text."""
    added = backend.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


logger = logging.getLogger(__name__)


class Decoding(Protocol):
    """Decoding of one text. Joined, the results of `push` and `flush` are the whole decoding."""

    def push(self, ids: Sequence[int]) -> str:
        """Take further ids, and return the text that has become certain."""

    def flush(self) -> str: ...


def choose_decoding(
    backend: Tokenizer, *, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset()
) -> Callable[[], Decoding]:
    """Choose the exact decoding for a tokenizer.

    Args:
        backend: the tokenizer; it must not change afterwards.
        shown: special tokens not to omit.

    Returns:
        A function that begins a text. All texts share the tables behind it.
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
        # Ids to decode before others, so that these get the text that their place gives them: at
        # first the few whose text is still empty, afterwards any token with text.
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
        # Joins tokens, which the library does anyway.
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
    """Return a token that decodes to itself, to stand for the text before other tokens."""
    special = special_tokens(backend)
    letters = sorted(
        token_id
        for token, token_id in backend.get_vocab().items()
        if token.isalnum() and token not in special
    )
    return next((id_ for id_ in letters if backend.decode([id_]) == backend.id_to_token(id_)), None)


class StopWordMatcher:
    """Ends one text before its first stop word, or after it.

    The reference is a search in the whole text: the cut is at the smallest `text.find(word)` over
    all words. A word that began later but is complete earlier therefore waits for one that began
    before it and may still be completed ("c" for "bcd"); it decides as soon as that one fails, or
    at the end. Of words that begin at the same place the shortest decides.

    Args:
        stop_words: the words, shared by all texts that they end.
        shown: include the stop word that ends the text.

    Attributes:
        word: the stop word that has ended the text; final after `flush`.
    """

    def __init__(self, stop_words: StopWords, *, shown: bool = False) -> None:
        self._words = stop_words
        self._shown = shown
        self._node = 0
        # The text that is not shown yet: always as long as the node is deep.
        self._held = ""
        # The word in the held text that ends it, if no word that began earlier is completed.
        self._found: _Found | None = None
        self.word: str | None = None

    @property
    def matched(self) -> bool:
        return self.word is not None

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next part of the text, cut anywhere.

        Returns:
            The text that is safe to show, and True if a stop word has ended it. Later calls return
            no text.
        """
        if self.word is not None:
            return "", True
        words = self._words
        if not self._held and words.first_characters.isdisjoint(text):
            return text, False
        held = self._held + text
        node, found = self._node, self._found
        for end, character in enumerate(text, start=len(self._held) + 1):
            node = words.step(node, character)
            length = words.complete[node]
            if length and (found is None or end - length < found.start):
                found = _Found(end - length, end)
            if found is not None and end - words.depth[node] >= found.start:
                self._held = ""
                return self._ended(held, found), True
        safe = len(held) - words.depth[node]
        self._node, self._held = node, held[safe:]
        self._found = None if found is None else _Found(found.start - safe, found.end - safe)
        return held[:safe], False

    def flush(self) -> str:
        """End the text, and return the held-back text to show."""
        held, self._held = self._held, ""
        if self._found is None or self.word is not None:
            return held
        return self._ended(held, self._found)

    def _ended(self, text: str, found: _Found) -> str:
        self.word = text[found.start : found.end]
        return text[: found.end if self._shown else found.start]


class _Found(NamedTuple):
    start: int
    end: int


class StopWords:
    """The words as a trie, whose nodes know where to go on when the next character does not fit.

    Building it takes a dictionary for each character of the words.

    Args:
        words: any number of words; the order does not matter.

    Raises:
        ValueError: a word is empty.

    Attributes:
        first_characters: those with which a word can begin.
        depth: by node, the length of what it stands for.
        complete: by node, the length of the longest word that ends there; 0 if none does.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.complete = [0]
        for word in words:
            self._add(word)
        self._link()
        self.first_characters = frozenset(self._children[0])

    def __bool__(self) -> bool:
        return len(self._children) > 1

    def step(self, node: int, character: str) -> int:
        """Return the node of the longest such suffix after adding a character."""
        children = self._children[node]
        while node and character not in children:
            node = self._fallback[node]
            children = self._children[node]
        return children.get(character, 0)

    def _add(self, word: str) -> None:
        if not word:
            raise ValueError("a stop word is empty")
        node = 0
        for character in word:
            if character not in self._children[node]:
                self._children[node][character] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[node] + 1)
                self.complete.append(0)
            node = self._children[node][character]
        self.complete[node] = len(word)

    def _link(self) -> None:
        """Set every node's fallback, shallow ones first: a fallback is always shallower."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            self.complete[node] = self.complete[node] or self.complete[self._fallback[node]]
            for character, child in self._children[node].items():
                self._fallback[child] = self.step(self._fallback[node], character)
                queue.append(child)


NO_STOP_WORDS = StopWords()


class Piece(NamedTuple):
    """The next part of an answer.

    Attributes:
        text: visible text; may be empty.
        stopped: True if a stop word has ended the answer: nothing follows.
        used: ids consumed; those after the one that completed a stop word are not.
    """

    text: str
    stopped: bool
    used: int


class TokenText(NamedTuple):
    """A token and the text that it added; empty where a later one completes a character."""

    id: int
    text: str


class TextStream:
    """Text of one answer, from its first id to its end.

    The joined texts are the decoding of all ids, cut before the first stop word, or after it. A
    stop word at the very end may be decided only by `finish`; check `stop_word` afterwards.

    Args:
        include_stop_word: include the one that ends it.
        shown: special tokens not to omit.

    Attributes:
        tokens: tokens of the text of the last `push` or `finish`; filled by
            `TokenStream` only.
    """

    tokens: tuple[TokenText, ...] = ()

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stop_words: StopWords = NO_STOP_WORDS,
        *,
        include_stop_word: bool = False,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
    ) -> None:
        self._decoding = tokenizer.start_decoding(skip_special_tokens, shown)
        self._matcher = StopWordMatcher(stop_words, shown=include_stop_word)
        self._is_watched = bool(stop_words)

    @property
    def stopped(self) -> bool:
        return self._matcher.matched

    @property
    def stop_word(self) -> str | None:
        return self._matcher.word

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next generated ids, and return the text that is now certain."""
        if self._is_watched:
            return self._push_watched(ids)
        return Piece(self._decoding.push(ids), False, len(ids))

    def finish(self) -> str:
        """End the answer, and return the text that was held back."""
        text, stopped = self._matcher.push(self._decoding.flush())
        return text if stopped else text + self._matcher.flush()

    def _push_watched(self, ids: Sequence[int]) -> Piece:
        """Push one id at a time, to find the one that completes the stop word."""
        shown, stopped = [], self._matcher.matched
        used = 0
        for token_id in ids:
            if stopped:
                break
            text, stopped = self._matcher.push(self._decoding.push((token_id,)))
            shown.append(text)
            used += 1
        return Piece("".join(shown), stopped, used)


class TokenStream(TextStream):
    """A `TextStream` that reports its tokens.

    Text is shown in whole tokens, so it can come later than from a `TextStream`. Tokens of a hidden
    stop word are not reported; one that it cuts is reported with the text that is left.

    Attributes:
        tokens: tokens of the text of the last `push` or `finish`, except for a character that the
            answer's last token begins and nothing completes.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stop_words: StopWords = NO_STOP_WORDS,
        *,
        include_stop_word: bool = False,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
    ) -> None:
        super().__init__(
            tokenizer,
            stop_words,
            include_stop_word=include_stop_word,
            skip_special_tokens=skip_special_tokens,
            shown=shown,
        )
        self._held: deque[TokenText] = deque()
        # Characters at the beginning of the held tokens' text that no stop word can take back.
        self._certain = 0

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids, and return the text of the tokens that are now certain."""
        used, stopped = 0, self.stopped
        for token_id in ids:
            if stopped:
                break
            text = self._decoding.push((token_id,))
            self._held.append(TokenText(token_id, text))
            certain, stopped = self._matcher.push(text)
            self._certain += len(certain)
            used += 1
        self._release(over=stopped)
        return Piece(self._text(), stopped, used)

    def finish(self) -> str:
        tail = self._decoding.flush()
        if self._held:
            token_id, text = self._held.pop()
            self._held.append(TokenText(token_id, text + tail))
        certain = self._matcher.push(tail)[0] + self._matcher.flush()
        self._certain += len(certain)
        self._release(over=True)
        return self._text() or certain

    def _text(self) -> str:
        return "".join([token.text for token in self.tokens])

    def _release(self, *, over: bool) -> None:
        """Report the tokens whose text is certain; once all is over, also the beginning of one.

        Tokens without text wait for the one that completes their character.
        """
        room, count = self._certain, 0
        for place, token in enumerate(self._held if room else (), start=1):
            if len(token.text) > room:
                break
            if token.text:
                room, count = room - len(token.text), place
        released = [self._held.popleft() for _ in range(count)]
        while over and room and self._held:
            token_id, text = self._held.popleft()
            released.append(TokenText(token_id, text[:room]))
            room -= len(released[-1].text)
        if over:
            released += () if self.stopped else self._held
            self._held.clear()
        self._certain = 0 if over else room
        self.tokens = tuple(released)
