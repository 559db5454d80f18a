"""Text of one answer: ids in, visible text out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from trtllm_truss.text.stop_words import StopWordMatcher, StopWords
from trtllm_truss.text.tokenizer import TextTokenizer

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
        tokenizer: the model's tokenizer.
        stop_words: words that end the answer.
        include_stop_word: include the one that ends it.
        skip_special_tokens: omit special tokens.
        shown: special tokens not to omit.

    Attributes:
        tokens: tokens of the text of the last `push` or `finish`; filled by
            `token_stream.TokenStream` only.
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
