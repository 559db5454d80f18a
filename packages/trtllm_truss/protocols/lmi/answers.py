"""Deltas and ends become JSON: one object for each input."""

from __future__ import annotations

from typing import Any

from trtllm_truss.protocols.base import CollectedAnswer, WholeWriter
from trtllm_truss.protocols.lmi.call import LmiCall
from trtllm_truss.protocols.lmi.tokens import finish_reason, token_object
from trtllm_truss.requests import GenerationEnd, Token

Json = dict[str, Any]


class LmiAnswer(WholeWriter):
    """Collects the answers of one call."""

    def __init__(self, call: LmiCall) -> None:
        super().__init__()
        self._call = call

    def body(self) -> Json | list[Json]:
        """An object, or a list of them for a list of inputs and for TGI's clients."""
        objects = [
            self._object(request.prompt or "", *self.ended(index))
            for index, request in enumerate(self._call.requests)
        ]
        return objects if self._call.listed or self._call.tgi else objects[0]

    def _object(self, prompt: str, answer: CollectedAnswer, end: GenerationEnd) -> Json:
        text = prompt + answer.text if self._call.return_full_text else answer.text
        whole: Json = {"generated_text": text}
        if self._call.details:
            whole["details"] = self._details(prompt, answer.tokens, end)
        return whole

    def _details(self, prompt: str, tokens: list[Token], end: GenerationEnd) -> Json:
        tgi = self._call.tgi
        head: Json = {
            "finish_reason": finish_reason(end),
            "generated_tokens": end.usage.completion_tokens,
        }
        told = [token_object(token, tgi=tgi) for token in tokens]
        prefill = [token_object(token, tgi=tgi) for token in end.prompt]
        if tgi:
            return {**head, "seed": end.seed, "prefill": prefill, "tokens": told}
        details: Json = {**head, "inputs": prompt, "tokens": told}
        return {**details, "prefill": prefill} if prefill else details
