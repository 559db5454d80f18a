"""Pieces and ends become OpenAI's objects: one whole, or a stream of chunks."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.protocols.openai.call import OpenAICall
from trtllm_truss.protocols.openai.errors import error_event
from trtllm_truss.requests import Finish, Piece, Token

DONE = b"data: [DONE]\n\n"


class UsageCount:
    """Tokens of a whole call: a prompt counts once, however many choices it has."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._completion_tokens = 0

    def add(self, position: int, finish: Finish) -> None:
        """Takes one choice of the prompt at `position` in."""
        self._prompts[position] = finish.usage.prompt_tokens
        self._completion_tokens += finish.usage.completion_tokens

    def fields(self) -> dict[str, int]:
        """The object `usage`."""
        prompt_tokens = sum(self._prompts.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt_tokens + self._completion_tokens,
        }


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None


class WholeAnswer:
    """Collects the answers of one call.

    Args:
        call: what was asked for.
        answer_id: unique, without the API's prefix.
        created_s: seconds since 1970.
    """

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        self._call = call
        self._head = _head(call, call.shape.whole_object, answer_id, created_s)
        self._choices: dict[int, _Choice] = defaultdict(_Choice)
        self._usage = UsageCount()

    def push(self, position: int, item: Piece | Finish) -> None:
        """Takes the next item in of the answer to the call's request at `position`."""
        choice = self._choices[position * self._call.n + item.index]
        if isinstance(item, Piece):
            choice.text.append(item.text)
            choice.tokens.extend(item.tokens)
        else:
            choice.finish = item
            self._usage.add(position, item)

    def body(self) -> dict[str, Any]:
        """The object, once every answer has ended.

        Raises:
            InternalError: one has not.
        """
        wanted = range(len(self._call.requests) * self._call.n)
        return {
            **self._head,
            "choices": [self._whole(index, self._choices[index]) for index in wanted],
            "usage": self._usage.fields(),
        }

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        if choice.finish is None:
            raise InternalError(f"choice {index} has no end.")
        text = "".join(choice.text)
        return self._call.shape.whole(index, text, choice.tokens, choice.finish.reason)


class EventStream:
    """Turns the answers of one call into server-sent events, as they come.

    Args:
        call: what was asked for.
        answer_id: unique, without the API's prefix.
        created_s: seconds since 1970.
    """

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        self._call = call
        head = _head(call, call.shape.chunk_object, answer_id, created_s)
        self._head = b"data: " + _json(head)[:-1] + b',"choices":'
        self._usage = UsageCount()
        self._lengths: dict[int, int] = {}

    def push(self, position: int, item: Piece | Finish) -> bytes:
        """The events for the next item of the answer to the call's request at `position`."""
        shape = self._call.shape
        index = position * self._call.n + item.index
        events = b""
        if index not in self._lengths:
            self._lengths[index] = 0
            opening = shape.opening(index)
            events = b"" if opening is None else self._event([opening])
        if isinstance(item, Finish):
            self._usage.add(position, item)
            return events + self._event([shape.ending(index, item.reason)])
        offset = self._lengths[index]
        self._lengths[index] = offset + len(item.text)
        return events + self._event([shape.part(index, item, offset)])

    def end(self) -> bytes:
        """What follows the last answer's end: the usage, if asked for, and `[DONE]`."""
        if not self._call.include_usage:
            return DONE
        usage = _json(self._usage.fields())
        return self._head + b'[],"usage":' + usage + b"}\n\n" + DONE

    def error(self, error: TrussError) -> bytes:
        """The last event of a stream that broke off; no `[DONE]` follows."""
        return error_event(error)

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        usage = b',"usage":null' if self._call.include_usage else b""
        return self._head + _json(choices) + usage + b"}\n\n"


def _head(call: OpenAICall, kind: str, answer_id: str, created_s: int) -> dict[str, Any]:
    return {
        "id": call.shape.id_prefix + answer_id,
        "object": kind,
        "created": created_s,
        "model": call.model,
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
