"""Pieces and ends become JSON: one object for each input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.errors import InternalError
from trtllm_truss.protocols.lmi.call import LmiCall
from trtllm_truss.protocols.lmi.tokens import finish_reason, token_object
from trtllm_truss.requests import Finish, Piece, Token

Json = dict[str, Any]


@dataclass(slots=True)
class _Answer:
    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None


class LmiAnswer:
    """Collects the answers of one call."""

    def __init__(self, call: LmiCall) -> None:
        self._call = call
        self._answers = [_Answer() for _ in call.requests]

    def push(self, position: int, item: Piece | Finish) -> None:
        """Takes the next item in of the answer to the call's request at `position`."""
        answer = self._answers[position]
        if isinstance(item, Piece):
            answer.text.append(item.text)
            answer.tokens.extend(item.tokens)
        else:
            answer.finish = item

    def body(self) -> Json | list[Json]:
        """An object, or a list of them for a list of inputs and for TGI's clients.

        Raises:
            InternalError: an answer has not ended.
        """
        objects = [
            self._object(request.prompt or "", answer)
            for request, answer in zip(self._call.requests, self._answers, strict=True)
        ]
        return objects if self._call.listed or self._call.tgi else objects[0]

    def _object(self, prompt: str, answer: _Answer) -> Json:
        if answer.finish is None:
            raise InternalError("the answer has no end.")
        text = "".join(answer.text)
        whole: Json = {"generated_text": prompt + text if self._call.return_full_text else text}
        if self._call.details:
            whole["details"] = self._details(prompt, answer.tokens, answer.finish)
        return whole

    def _details(self, prompt: str, tokens: list[Token], finish: Finish) -> Json:
        tgi = self._call.tgi
        head: Json = {
            "finish_reason": finish_reason(finish),
            "generated_tokens": finish.usage.completion_tokens,
        }
        told = [token_object(token, tgi=tgi) for token in tokens]
        prefill = [token_object(token, tgi=tgi) for token in finish.prompt]
        if tgi:
            return {**head, "seed": finish.seed, "prefill": prefill, "tokens": told}
        details: Json = {**head, "inputs": prompt, "tokens": told}
        return {**details, "prefill": prefill} if prefill else details
