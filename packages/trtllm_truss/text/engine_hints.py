"""Stop words that the engine can watch for by itself, so that it does not generate in vain."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.detokenizer import IncrementalDetokenizer
from trtllm_truss.text.tokenizer import TextTokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def engine_stop_hints(tokenizer: TextTokenizer, stop_words: Sequence[str]) -> list[list[int]]:
    """Token lists for the engine's `stop_words_list`.

    A hint is only an accelerator: the text is searched in any case. So a hint must be certain to
    mean that the text holds the stop word, whatever was generated before. Words of several tokens
    give none: the engine also matches such a list when it begins in the prompt.

    Args:
        tokenizer: the model's tokenizer.
        stop_words: the words of a request.

    Returns:
        Lists of one id each, without repetitions; empty if no word is a token.
    """
    ids = {token_id for word in stop_words for token_id in _certain_token(tokenizer, word)}
    return [[token_id] for token_id in sorted(ids)]


def _certain_token(tokenizer: TextTokenizer, word: str) -> list[int]:
    """The id whose text holds the word wherever it stands, if there is one."""
    try:
        ids = tokenizer.encode(word, add_special_tokens=False)
    except InvalidRequest:  # what is not text is in no text
        return []
    # A U+FFFD can come from bytes that an earlier token would complete.
    if len(ids) != 1 or _REPLACEMENT in word:
        return []
    # Twice, for a token at the beginning of a text can differ from the same one further on. Never
    # flushed, for what only the end of a text makes certain is not certain.
    detokenizer = IncrementalDetokenizer(tokenizer)
    return ids if all(word in detokenizer.push(ids) for _ in range(2)) else []
