"""The engine's responses -> the text of one answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from numpy.typing import NDArray

from trtllm_truss.text.text_stream import StopWords, TextStream
from trtllm_truss.text.tokenizer import TextTokenizer


class TextAnswer:
    """Text of one answer, of one beam or several.

    Args:
        tokenizer: the model's tokenizer.
        stop_words: words that end the answer and are not part of it.
        end_ids: ids that end the answer and are hidden.

    Attributes:
        lengths: tokens of each beam so far.
    """

    def __init__(
        self, tokenizer: TextTokenizer, stop_words: Sequence[str], end_ids: Collection[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_words = StopWords(stop_words)
        self._end_ids = end_ids
        self._streams: list[TextStream] = []
        self.lengths: list[int] = []

    @property
    def stopped(self) -> bool:
        """Return True if a stop word has ended every beam, so that the engine can stop."""
        return bool(self._streams) and all(stream.stopped for stream in self._streams)

    def push(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """Take the next ids of each beam, and return each beam's text that is now certain."""
        if not self._streams:
            self._streams = [TextStream(self._tokenizer, self._stop_words) for _ in lists]
            self.lengths = [0] * len(lists)
        self.lengths = [old + len(ids) for old, ids in zip(self.lengths, lists, strict=True)]
        return [
            stream.push(self._shown(ids)).text
            for stream, ids in zip(self._streams, lists, strict=True)
        ]

    def finish(self) -> list[str]:
        """End the answer, and return each beam's text that was held back."""
        return [stream.finish() for stream in self._streams]

    def _shown(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self._end_ids else ids


def beams(tokens: NDArray[Any], lengths: NDArray[Any]) -> list[list[int]]:
    """Return the ids of each beam, without padding.

    Args:
        tokens: INT32 [beams, tokens].
        lengths: INT32 [beams].
    """
    pairs = zip(tokens.tolist(), lengths.tolist(), strict=True)
    return [row[:length] for row, length in pairs]
