"""Token ids to text, one piece at a time."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_truss.text.tokenizer import TextTokenizer


class IncrementalDetokenizer:
    """The text of one answer while its ids arrive.

    Whatever the cuts between pushes, all results joined are `tokenizer.decode` of all ids, to the
    byte. Text is given out as soon as no further id can change it, so a U+FFFD in it is one that
    the whole text has. The cost of a token does not grow with the length of the text.

    Args:
        tokenizer: the model's tokenizer.
        skip_special_tokens: whether special tokens do not show.
    """

    def __init__(self, tokenizer: TextTokenizer, *, skip_special_tokens: bool = True) -> None:
        decoding = tokenizer.start_decoding(skip_special_tokens)
        self._push = decoding.push
        self._flush = decoding.flush

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids.

        Args:
            ids: any number of ids from 0 on, in the order in which they were generated.

        Returns:
            The text that has become certain; often empty.
        """
        return self._push(ids)

    def flush(self) -> str:
        """End the text.

        Returns:
            What was held back: a character that stayed incomplete shows as U+FFFD.
        """
        return self._flush()
