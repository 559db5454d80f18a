"""Answers and errors in LMI's shapes and in TGI's: JSON, JSON lines, or server-sent events."""

from __future__ import annotations

import json
from typing import Any

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import CollectedAnswer, WholeWriter, sse_event
from trtllm_truss.protocols.lmi.call import LmiCall, LmiForm
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, Token

Json = dict[str, Any]

NO_TOKEN = Token(id=-1, text="", log_prob=-1, special=True)
"""What LMI puts where a line must have a token and there is none."""


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


class LmiStream:
    """Turns the answer of one call into lines, as it comes: one for each token.

    The last line holds the last token together with the whole text, so a token is sent when the
    next one is there or nothing follows.
    """

    def __init__(self, call: LmiCall) -> None:
        self._call = call
        self._text: list[str] = []
        self._held: Token | None = None
        self._sent = 0

    def push(self, item: AnswerItem) -> bytes:
        """The lines that the next item completes; possibly none."""
        if isinstance(item, GenerationEnd):
            return self._line(self._held or NO_TOKEN, self._ending(item))
        self._text.append(item.text)
        lines = b""
        for token in item.tokens:
            lines += self._release()
            self._held = token
        return lines

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: TrussError) -> bytes:
        """The last lines of an answer that broke off."""
        return self._release() + self._encoded(error_line(error, tgi=self._call.tgi))

    def _release(self) -> bytes:
        if self._held is None:
            return b""
        token, self._held = self._held, None
        empty = {"generated_text": None, "details": None} if self._call.tgi else {}
        return self._line(token, empty)

    def _line(self, token: Token, ending: dict[str, Any]) -> bytes:
        self._sent += 1
        index = {"index": self._sent} if self._call.tgi else {}
        return self._encoded({**index, "token": token_object(token, tgi=self._call.tgi), **ending})

    def _ending(self, finish: GenerationEnd) -> dict[str, Any]:
        prompt = self._call.requests[0].prompt or ""
        text = "".join(self._text)
        ending: dict[str, Any] = {
            "generated_text": prompt + text if self._call.return_full_text else text
        }
        if self._call.details:
            details: dict[str, Any] = {
                "finish_reason": finish_reason(finish),
                "generated_tokens": finish.usage.completion_tokens,
            }
            if self._call.tgi:
                details.update(input_length=finish.usage.prompt_tokens, seed=finish.seed)
            else:
                details["inputs"] = prompt
            ending["details"] = details
        elif self._call.tgi:
            ending["details"] = None
        return ending

    def _encoded(self, line: dict[str, Any]) -> bytes:
        if self._call.form is LmiForm.EVENTS:
            return sse_event(line)
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def token_object(token: Token, *, tgi: bool) -> dict[str, Any]:
    """One token. LMI tells of special ones only where a token is one."""
    if tgi:
        return {
            "id": token.id,
            "text": token.text,
            "logprob": token.log_prob,
            "special": token.special,
        }
    plain: dict[str, Any] = {"id": token.id, "text": token.text, "log_prob": token.log_prob}
    return {**plain, "special_token": True} if token.special else plain


def finish_reason(finish: GenerationEnd) -> str:
    """`length`, `eos_token` or `stop_sequence`."""
    if finish.reason is FinishReason.LENGTH:
        return "length"
    return "eos_token" if finish.stop_word is None else "stop_sequence"


def error_body(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """The body of an error response.

    LMI answers 424 to nearly everything; `code` here is the true status of the response. TGI's
    clients choose their exception by `error_type`.
    """
    if tgi:
        return {"error": error.message, "error_type": _kind(error)}
    return {"code": error.status, "error": error.message}


def error_line(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """The last line of a stream that broke off: LMI's token of an error, with its message."""
    if tgi:
        return error_body(error, tgi=True)
    return {
        "token": {**token_object(NO_TOKEN, tgi=False), "error_msg": error.message},
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }


def _kind(error: TrussError) -> str:
    if isinstance(error, RequestError):
        return "validation"
    return "overloaded" if isinstance(error, QueueFull) else "generation"
