"""Stop words and bad words as the token lists of `tensorrt_llm`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.text.text_stream import encode_word, implies_word
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.tensors import pack_words


def stop_lists(
    tokenizer: TextTokenizer, words: Sequence[str], prompt: Sequence[int]
) -> list[list[int]]:
    """Return token lists at which the engine may end an answer, see `engine_hints`.

    A word is left out if its list could end an answer without the word: when the prompt ends with
    the beginning of the list, since the engine matches across that border, and when its tokens do
    not imply the word. A special token never shows and always ends the answer.

    Args:
        tokenizer: the model's tokenizer.
        words: stop words of the request.
        prompt: ids of the prompt.
    """
    lists = (encode_word(tokenizer, word) for word in words)
    return _distinct(
        ids
        for word, ids in zip(words, lists, strict=True)
        if not _straddles(prompt, ids)
        and (
            (len(ids) == 1 and ids[0] in tokenizer.special_ids)
            or implies_word(tokenizer, ids, word)
        )
    )


def bad_lists(tokenizer: TextTokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return token lists that the engine must not generate: each word, with and without a space."""
    spellings = (spelling for word in words for spelling in (word, f" {word}"))
    return _distinct(encode_word(tokenizer, spelling) for spelling in spellings)


def word_tensor(lists: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return token lists as the engine takes them, INT32 [1, 2, n]; see `pack_words`."""
    return np.frombuffer(pack_words(lists), np.int32).reshape(1, 2, sum(map(len, lists)))


def _straddles(prompt: Sequence[int], ids: Sequence[int]) -> bool:
    return any(list(prompt[-cut:]) == list(ids[:cut]) for cut in range(1, len(ids)))


def _distinct(lists: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in dict.fromkeys(map(tuple, lists)) if each]
