"""One answer to a request, as the engine is asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_truss.inference.tokenization import EncodedPrompt
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.text.stop_words import StopWords
from trtllm_truss.triton.client.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer to a request, as the engine is asked for it.

    Attributes:
        request: what is answered.
        prompt: its prompt.
        engine_request: what is sent.
        end_ids: the ids that end the answer and are not part of it.
        special_stop_words: of the end ids, those that are stop words, with their texts.
        stop_words: those of the request, shared by its answers.
        index: which of the request's answers it is.
    """

    request: GenerationRequest
    prompt: EncodedPrompt
    engine_request: EngineRequest
    end_ids: tuple[int, ...]
    special_stop_words: Mapping[int, str]
    stop_words: StopWords
    index: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that its KV cache must have room for in the end, all beams together."""
        request = self.engine_request
        return (len(request.input_ids) + request.max_tokens) * request.beam_width

    @property
    def seed(self) -> int:
        """What the random numbers begin with."""
        seed = self.engine_request.sampling.seed
        assert seed is not None
        return seed

    def special_stop_word(self, end_id: int | None) -> str | None:
        """The stop word that an answer ended with, if it is a special token.

        Args:
            end_id: the end id in the output; None if it was the one that the engine leaves out.
        """
        end = self.engine_request.end_id if end_id is None else end_id
        return None if end is None else self.special_stop_words.get(end)

    def cut_at_end(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], int | None]:
        """The ids before the first end id, and that id if there is one.

        The engine leaves out the one end id that it knows; others come as stop words, in the
        output.
        """
        for place, token_id in enumerate(ids):
            if token_id in self.end_ids:
                return ids[:place], token_id
        return ids, None
