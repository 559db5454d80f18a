"""The text of one answer: ids in, what the reader sees out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trtllm_truss.text.detokenizer import IncrementalDetokenizer
from trtllm_truss.text.stop_words import StopWordMatcher
from trtllm_truss.text.tokenizer import TextTokenizer


class Piece(NamedTuple):
    """The next part of an answer.

    Attributes:
        text: text to show; may be empty.
        stopped: whether a stop word has ended the answer, so that nothing follows.
    """

    text: str
    stopped: bool


class TextStream:
    """One answer from its first id to its end.

    All texts joined are the decoding of all ids, cut before the first stop word. A stop word at
    the very end may be decided only by `finish`; look at `stopped` afterwards.

    Args:
        tokenizer: the model's tokenizer.
        stop_words: words that end the answer and are not part of it.

    Raises:
        ValueError: a stop word is empty.
    """

    def __init__(self, tokenizer: TextTokenizer, stop_words: Sequence[str]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._matcher = StopWordMatcher(stop_words)

    @property
    def stopped(self) -> bool:
        """Whether a stop word has ended the answer."""
        return self._matcher.matched

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids.

        Args:
            ids: any number of ids, in the order in which they were generated.

        Returns:
            The text that is certain now.
        """
        if self._matcher.matched:
            return Piece("", stopped=True)
        return Piece(*self._matcher.push(self._detokenizer.push(ids)))

    def finish(self) -> str:
        """End the answer, because the engine has.

        Returns:
            The text that was held back.
        """
        text, stopped = self._matcher.push(self._detokenizer.flush())
        return text if stopped else text + self._matcher.flush()
