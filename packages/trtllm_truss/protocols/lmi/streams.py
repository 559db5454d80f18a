"""Deltas and ends become lines, one for each token: JSON lines or server-sent events.

The last line holds the last token together with the whole text, so a token is sent when the next
one is there or nothing follows.
"""

from __future__ import annotations

import json
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import sse_event
from trtllm_truss.protocols.lmi.call import LmiCall, LmiForm
from trtllm_truss.protocols.lmi.errors import error_line
from trtllm_truss.protocols.lmi.tokens import NO_TOKEN, finish_reason, token_object
from trtllm_truss.requests import AnswerItem, GenerationEnd, Token


class LmiStream:
    """Turns the answer of one call into lines, as it comes."""

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
