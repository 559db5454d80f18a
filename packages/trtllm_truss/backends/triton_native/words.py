"""Stop words and bad words as the token lists of `tensorrt_llm`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def stop_lists(
    tokenizer: TextTokenizer, words: Sequence[str], prompt: Sequence[int]
) -> list[list[int]]:
    """Token lists at which the engine may end an answer.

    The text decides; a list only saves the engine from generating in vain. It is left out where it
    could end an answer whose text does not hold the word: when the prompt ends with its beginning,
    for the engine matches across that border, and when its tokens do not show the word.

    Args:
        tokenizer: the model's tokenizer.
        words: as the client wrote them.
        prompt: ids of the prompt.
    """
    lists = (_encode(tokenizer, word) for word in words)
    return _distinct(
        ids
        for word, ids in zip(words, lists, strict=True)
        if ids and not _straddles(prompt, ids) and _shows(tokenizer, word, ids)
    )


def bad_lists(tokenizer: TextTokenizer, words: Sequence[str]) -> list[list[int]]:
    """Token lists that the engine must not generate: each word, also as it follows a space."""
    spellings = (spelling for word in words for spelling in (word, f" {word}"))
    return _distinct(_encode(tokenizer, spelling) for spelling in spellings)


def pack(lists: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Token lists as the engine takes them.

    Returns:
        INT32 [1, 2, n]: all ids one after another, and below them where each list ends, padded
        with -1. [[5, 7, 3], [9, 2]] gives [[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]].
    """
    ids = [token_id for each in lists for token_id in each]
    packed = np.full((1, 2, len(ids)), -1, np.int32)
    packed[0, 0] = ids
    packed[0, 1, : len(lists)] = np.cumsum([len(each) for each in lists])
    return packed


def _encode(tokenizer: TextTokenizer, word: str) -> list[int]:
    try:
        return tokenizer.encode(word, add_special_tokens=False)
    except InvalidRequest:  # what is not text is in no text
        return []


def _straddles(prompt: Sequence[int], ids: Sequence[int]) -> bool:
    return any(list(prompt[-cut:]) == list(ids[:cut]) for cut in range(1, len(ids)))


def _shows(tokenizer: TextTokenizer, word: str, ids: list[int]) -> bool:
    if len(ids) == 1 and ids[0] in tokenizer.special_ids:
        return True  # it never shows, and ends the answer all the same
    if _REPLACEMENT in word:  # could come from bytes that an earlier token would complete
        return False
    # Twice, for tokens at the beginning of a text can differ from the same ones further on.
    decoding = tokenizer.start_decoding()
    return all(word in decoding.push(ids) for _ in range(2))


def _distinct(lists: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in dict.fromkeys(map(tuple, lists)) if each]
