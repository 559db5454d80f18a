"""Token ids of stop words, by which the engine may stop before the text is searched.

An id list is only a hint, because the text is searched in any case. It must imply the stop word
after any other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REMEMBERED_WORDS = 1024


def encode_word(tokenizer: TextTokenizer, word: str) -> list[int]:
    """Return the ids of a word; none for invalid Unicode, which no text can hold."""
    try:
        return tokenizer.encode(word, add_special_tokens=False)
    except InvalidRequest:
        return []


def implies_word(tokenizer: TextTokenizer, ids: Sequence[int], word: str) -> bool:
    """Return True if any text with these ids holds the word."""
    if _REPLACEMENT in word:  # could come from bytes that an earlier token would complete
        return False
    # Twice: a token at the beginning of a text can differ from the same one further on.
    # Never flushed: text that only the end makes certain is not certain.
    decoding = tokenizer.start_decoding()
    return all(word in decoding.push(ids) for _ in range(2))


class StopWordIds:
    """Stop words as single ids of one tokenizer; remembers the most recent words.

    Words of several tokens have no id here: the engine would also match a list that begins in the
    prompt.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.hint = lru_cache(_REMEMBERED_WORDS)(self._hint)
        self.special = lru_cache(_REMEMBERED_WORDS)(self._special)

    def _hint(self, word: str) -> int | None:
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and implies_word(self._tokenizer, ids, word) else None

    def _special(self, word: str) -> int | None:
        """Return the id of the special token spelled like the word; it never shows in a text."""
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and ids[0] in self._tokenizer.special_ids else None
