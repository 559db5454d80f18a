"""The model `postprocessing`, which decodes the tokens of whole outputs.

Names, types and shapes are those of NVIDIA's model with this name. It keeps no state between
requests, so it is correct for whole outputs only; `tensorrt_llm_bls` decodes while tokens arrive.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_backends.kill_parent_on_death import KillParentOnDeath
from trtllm_backends.tensors import Tensors
from trtllm_backends.triton_native.tensors import beams, from_texts, read_parameters, tokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._tokenizer = tokenizer(read_parameters(args))
        self._kill_on_death = KillParentOnDeath()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        self._kill_on_death.stop()

    def _answer(self, request: Any) -> Any:
        arrays = dict(Tensors.of(request))
        tokens, lengths = arrays["TOKENS_BATCH"], arrays["SEQUENCE_LENGTH"]
        rows = [
            [self._tokenizer.decode(ids) for ids in beams(*answer)]
            for answer in zip(tokens, lengths, strict=True)
        ]
        return pb_utils.InferenceResponse([from_texts("OUTPUT", rows)])
