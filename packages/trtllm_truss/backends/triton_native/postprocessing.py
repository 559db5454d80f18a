"""The model `postprocessing`: the tokens of whole answers become text.

Names, types and shapes are those of NVIDIA's model of this name. It keeps nothing between requests,
so it is right for whole answers only; `tensorrt_llm_bls` turns tokens into text while they come.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.parent_death_watch import ParentDeathWatch
from trtllm_truss.backends.triton_native.answer import beams
from trtllm_truss.backends.triton_native.config import parameters, tokenizer
from trtllm_truss.backends.triton_native.tensors import Inputs, from_texts, to_numpy


class TritonPythonModel:
    """One process of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer.

        Raises:
            ArtifactError: `tokenizer_dir` holds none.
        """
        self._tokenizer = tokenizer(parameters(args))
        self._death_watch = ParentDeathWatch()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself."""
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        """End with Triton."""
        self._death_watch.let_go()

    def _answer(self, request: Any) -> Any:
        tensors = Inputs(request.inputs()).tensors
        tokens, lengths = (to_numpy(tensors[name]) for name in ("TOKENS_BATCH", "SEQUENCE_LENGTH"))
        rows = [
            [self._tokenizer.decode(ids) for ids in beams(*answer)]
            for answer in zip(tokens, lengths, strict=True)
        ]
        return pb_utils.InferenceResponse([from_texts("OUTPUT", rows)])
