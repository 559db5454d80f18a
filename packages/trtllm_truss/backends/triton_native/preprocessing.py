"""The model `preprocessing`: converts a prompt and words to inputs of `tensorrt_llm`.

Names, types and shapes are those of NVIDIA's model of this name (`all_models/inflight_batcher_llm/
preprocessing` in triton-inference-server/tensorrtllm_backend), without the inputs for images and
encoders.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.kill_parent_on_death import KillParentOnDeath
from trtllm_truss.backends.parameters import boolean
from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.triton_native.config import read_parameters, tokenizer
from trtllm_truss.backends.triton_native.tensors import (
    from_ids,
    from_integer,
    from_numpy,
    prompt,
    words,
)
from trtllm_truss.backends.triton_native.words import bad_lists, stop_lists, word_tensor
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer

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
        # The engine knows one end id; further ones travel as stop words.
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
    """Return the ids of a prompt, with BOS once, even if the prompt includes it."""
    ids = tokenizer.encode(prompt, adds_special_tokens)
    twice = ids[:2] == [tokenizer.bos_id] * 2
    return ids[1:] if adds_special_tokens and twice else ids


def _tokens_to_generate(inputs: Tensors) -> int:
    wanted = inputs.integer("REQUEST_OUTPUT_LEN", None)
    if wanted is None or wanted < 1:
        raise InvalidRequest(f"max_tokens is {wanted}; send 1 or more.", param="max_tokens")
    return wanted
