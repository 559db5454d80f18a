"""The text of one answer: ids in, what the reader sees out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trtllm_truss.text.stop_words import StopWordMatcher, StopWords
from trtllm_truss.text.tokenizer import TextTokenizer

NO_STOP_WORDS = StopWords()


class Piece(NamedTuple):
    """The next part of an answer.

    Attributes:
        text: text to show; may be empty.
        stopped: whether a stop word has ended the answer, so that nothing follows.
        used: ids that were taken; those after the one that completed a stop word are not.
    """

    text: str
    stopped: bool
    used: int


class TokenText(NamedTuple):
    """A token and the text that it has added; empty where a later one completes a character."""

    id: int
    text: str


class TextStream:
    """One answer from its first id to its end.

    All texts joined are the decoding of all ids, cut before the first stop word, or after it. A
    stop word at the very end may be decided only by `finish`; look at `stop_word` afterwards.

    Attributes:
        tokens: what the text of the last `push` or `finish` is made of; told by a
            `token_stream.TokenStream` alone.

    Args:
        tokenizer: the model's tokenizer.
        stop_words: words that end the answer.
        include_stop_word: whether the one that ends it is part of it.
        skip_special_tokens: whether special tokens do not show.
    """

    tokens: tuple[TokenText, ...] = ()

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stop_words: StopWords = NO_STOP_WORDS,
        *,
        include_stop_word: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._decoding = tokenizer.start_decoding(skip_special_tokens)
        self._matcher = StopWordMatcher(stop_words, shown=include_stop_word)
        self._push = self._push_watched if stop_words else self._push_all

    @property
    def stopped(self) -> bool:
        """Whether a stop word has ended the answer."""
        return self._matcher.matched

    @property
    def stop_word(self) -> str | None:
        """The stop word that has ended the answer."""
        return self._matcher.word

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids.

        Args:
            ids: any number of ids, in the order in which they were generated.

        Returns:
            The text that is certain now.
        """
        return self._push(ids)

    def finish(self) -> str:
        """End the answer, because the engine has.

        Returns:
            The text that was held back.
        """
        text, stopped = self._matcher.push(self._decoding.flush())
        return text if stopped else text + self._matcher.flush()

    def _push_all(self, ids: Sequence[int]) -> Piece:
        return Piece(self._decoding.push(ids), False, len(ids))

    def _push_watched(self, ids: Sequence[int]) -> Piece:
        """One id at a time, to know which one completed the stop word."""
        shown, stopped = [], self._matcher.matched
        used = 0
        for token_id in ids:
            if stopped:
                break
            text, stopped = self._matcher.push(self._decoding.push((token_id,)))
            shown.append(text)
            used += 1
        return Piece("".join(shown), stopped, used)
