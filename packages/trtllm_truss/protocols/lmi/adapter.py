"""Answers and errors for LMI and TGI: JSON, JSON lines, or server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import Overloaded, QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import Call, CollectedAnswer, Defaults, WholeWriter, sse_event
from trtllm_truss.protocols.lmi.body import parse_lmi
from trtllm_truss.protocols.lmi.call import LmiCall, LmiForm
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, Token

Json = dict[str, Any]

NO_TOKEN = Token(id=-1, text="", log_prob=-1, special=True)
"""LMI's placeholder in a line without a token."""


class LmiAnswer(WholeWriter):
    """Collects the answers of one call."""

    def __init__(self, call: LmiCall) -> None:
        super().__init__()
        self._call = call

    def body(self) -> Json | list[Json]:
        """Return an object, or a list for a list of inputs and for TGI's clients."""
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
        generated = [token_object(token, tgi=tgi) for token in tokens]
        prefill = [token_object(token, tgi=tgi) for token in end.prompt]
        if tgi:
            return {**head, "seed": end.seed, "prefill": prefill, "tokens": generated}
        details: Json = {**head, "inputs": prompt, "tokens": generated}
        return {**details, "prefill": prefill} if prefill else details


class LmiStream:
    """Encodes the answer of one call as lines, one per token.

    The last line has the last token and the whole text, so each token is held until the next one
    or the end.
    """

    def __init__(self, call: LmiCall) -> None:
        self._call = call
        self._text: list[str] = []
        self._held: Token | None = None
        self._sent = 0

    def push(self, item: AnswerItem) -> bytes:
        """Encode the lines that the next item completes."""
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
        """Encode the last lines of an aborted answer."""
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
    """Encode one token; LMI's `special_token` is present only if true."""
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
    """Return `length`, `eos_token` or `stop_sequence`."""
    if finish.reason is FinishReason.LENGTH:
        return "length"
    return "eos_token" if finish.stop_word is None else "stop_sequence"


def error_body(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """Encode an error response.

    LMI returns 424 for nearly all errors; our `code` is the actual status. TGI's clients choose
    their exception by `error_type`.
    """
    if tgi:
        return {"error": error.message, "error_type": _kind(error)}
    return {"code": error.status, "error": error.message}


def error_line(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """Encode the last line of an aborted stream: LMI's error token with the message."""
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
    return "overloaded" if isinstance(error, QueueFull | Overloaded) else "generation"


@dataclass(frozen=True, slots=True)
class LmiAdapter:
    """LMI's protocol, or with `tgi` that of Text Generation Inference."""

    defaults: Defaults
    tgi: bool = False
    name: str = "lmi"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_lmi(body, self.defaults, tgi=self.tgi)
        writer = LmiAnswer(call) if call.form is LmiForm.JSON else LmiStream(call)
        return Call(call.requests, writer, call.form.media_type)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error, tgi=self.tgi)
