"""What the ids of a stop word can tell the engine, so that it does not generate in vain."""

from __future__ import annotations

from functools import lru_cache

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REMEMBERED_WORDS = 1024


class StopWordIds:
    """Stop words as single ids of one tokenizer.

    Callers use the same few words again and again, so those are remembered. An id is only an
    accelerator: the text is searched in any case. So it must be certain to mean that the text
    holds the stop word, whatever was generated before. Words of several tokens give none: the
    engine also matches such a list when it begins in the prompt.

    Args:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.hint = lru_cache(_REMEMBERED_WORDS)(self._hint)
        self.special = lru_cache(_REMEMBERED_WORDS)(self._special)

    def _hint(self, word: str) -> int | None:
        """The id whose text holds the word wherever it stands, if there is one."""
        # A U+FFFD can come from bytes that an earlier token would complete.
        token_id = None if _REPLACEMENT in word else self._only_id(word)
        if token_id is None:
            return None
        # Twice, for a token at the beginning of a text can differ from the same one further on.
        # Never flushed, for what only the end of a text makes certain is not certain.
        decoding = self._tokenizer.start_decoding()
        return token_id if all(word in decoding.push([token_id]) for _ in range(2)) else None

    def _special(self, word: str) -> int | None:
        """The id of a special token that is written so; it never shows in a text."""
        token_id = self._only_id(word)
        return token_id if token_id in self._tokenizer.special_ids else None

    def _only_id(self, word: str) -> int | None:
        try:
            ids = self._tokenizer.encode(word, add_special_tokens=False)
        except InvalidRequest:  # what is not text is in no text
            return None
        return ids[0] if len(ids) == 1 else None
