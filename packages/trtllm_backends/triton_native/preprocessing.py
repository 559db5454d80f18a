"""The model `preprocessing`, which converts a prompt and words to inputs of `tensorrt_llm`.

Names, types and shapes are those of NVIDIA's model with this name
(`all_models/inflight_batcher_llm/preprocessing` in triton-inference-server/tensorrtllm_backend),
without the inputs for images and encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtllm_backends.kill_parent_on_death import KillParentOnDeath
from trtllm_backends.tensors import Tensors, boolean
from trtllm_backends.triton_native.tensors import (
    from_ids,
    from_integer,
    from_numpy,
    prompt,
    read_parameters,
    tokenizer,
    words,
)
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer, encode_word, implies_word
from trtllm_truss.triton.client.tensors import pack_words


def stop_lists(
    tokenizer: TextTokenizer, words: Sequence[str], prompt: Sequence[int]
) -> list[list[int]]:
    """Return token lists at which the engine may finish a choice; see `StopWordIds`.

    A word is omitted if its list could finish a choice without the word: when the prompt ends with
    the start of the list, since the engine matches across that boundary, and when its tokens do not
    imply the word. A special token never appears in text and always finishes the choice.
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
    """Return token lists that the engine must not generate: each word with and without a space."""
    spellings = (spelling for word in words for spelling in (word, f" {word}"))
    return _distinct(encode_word(tokenizer, spelling) for spelling in spellings)


def word_tensor(lists: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return token lists in the engine's format, INT32 [1, 2, n]; see `pack_words`."""
    return np.frombuffer(pack_words(lists), np.int32).reshape(1, 2, sum(map(len, lists)))


def _straddles(prompt: Sequence[int], ids: Sequence[int]) -> bool:
    return any(list(prompt[-cut:]) == list(ids[:cut]) for cut in range(1, len(ids)))


def _distinct(lists: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in dict.fromkeys(map(tuple, lists)) if each]


_NO_ID = -1  # an end or padding id that does not exist


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = read_parameters(args)
        self._tokenizer = tokenizer(parameters)
        self._adds_special_tokens = parameters.get("add_special_tokens", boolean, True)
        self._kill_on_death = KillParentOnDeath()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        self._kill_on_death.stop()

    def _answer(self, request: Any) -> Any:
        try:
            tensors = self._prepare(Tensors.of(request))
        except InvalidRequest as error:
            refusal = pb_utils.TritonError(error.message, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse(tensors)

    def _prepare(self, inputs: Tensors) -> list[Any]:
        known = self._tokenizer
        ids = encode_prompt(known, prompt(inputs, "QUERY"), self._adds_special_tokens)
        if not ids:
            raise InvalidRequest("The prompt has no tokens; send some text.", param="QUERY")
        end_id = inputs.integer("END_ID", None)
        end_ids = known.eos_ids if end_id is None else (end_id,)
        end_id = end_ids[0] if end_ids else _NO_ID
        pad_id = inputs.integer("PAD_ID", None)
        if pad_id is None:
            pad_id = end_id if known.pad_id is None else known.pad_id
        # The engine accepts one end id; further ones are sent as stop words.
        stops = [[each] for each in end_ids[1:]]
        stops += stop_lists(known, words(inputs, "STOP_WORDS_DICT"), ids)
        bads = bad_lists(known, words(inputs, "BAD_WORDS_DICT"))
        return [
            from_ids("INPUT_ID", ids),
            from_integer("REQUEST_INPUT_LEN", len(ids)),
            from_integer("REQUEST_OUTPUT_LEN", _tokens_to_generate(inputs)),
            from_numpy("BAD_WORDS_IDS", word_tensor(bads)),
            from_numpy("STOP_WORDS_IDS", word_tensor(stops)),
            from_integer("OUT_END_ID", end_id),
            from_integer("OUT_PAD_ID", pad_id),
        ]


def encode_prompt(tokenizer: TextTokenizer, prompt: str, adds_special_tokens: bool) -> list[int]:
    """Return a prompt's ids with BOS once, even if the prompt includes it."""
    ids = tokenizer.encode(prompt, adds_special_tokens)
    twice = ids[:2] == [tokenizer.bos_id] * 2
    return ids[1:] if adds_special_tokens and twice else ids


def _tokens_to_generate(inputs: Tensors) -> int:
    wanted = inputs.integer("REQUEST_OUTPUT_LEN", None)
    if wanted is None or wanted < 1:
        raise InvalidRequest(f"max_tokens is {wanted}; send 1 or more.", param="max_tokens")
    return wanted
