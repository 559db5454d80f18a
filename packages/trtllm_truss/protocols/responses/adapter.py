"""Responses: the output items of one choice, whole or as events while they grow.

The contents and order of events follow
https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    Defaults,
    WholeWriter,
    sse_event,
)
from trtllm_truss.protocols.openai.answers import ChatShape, error_body
from trtllm_truss.protocols.responses.body import ResponsesCall, parse_response
from trtllm_truss.protocols.tool_origins import Origin, Origins, custom_input
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, Token, Usage
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ParsedText,
    ReasoningDelta,
    call_as_text,
)

Json = dict[str, Any]

_CHANNELS = {
    "message": ("msg", "output_text"),
    "reasoning": ("rs", "reasoning_text"),
    "function_call": ("fc", "function_call_arguments"),
    "custom_tool_call": ("ctc", "custom_tool_call_input"),
}
"""The prefix of an item's id, and the name of the events of its text, by item type."""

_SUMMARY = "reasoning_summary_text"


class OutputItems:
    """Builds the output items of one choice from the parser's events.

    `read` and `finish` return OpenAI's events without their sequence numbers.

    Args:
        answer_id: makes ids of items and calls unique.
        origins: the tools behind functions.
        summarizes: return reasoning as its item's `summary`, where OpenAI's clients read it,
            instead of as `content`.

    Attributes:
        items: the finished items.
        has_reasoned: there was reasoning.
        has_cut_call: a call finished without complete arguments.
    """

    def __init__(self, answer_id: str, origins: Origins, *, summarizes: bool = False) -> None:
        self.items: list[Json] = []
        self.has_reasoned = False
        self.has_cut_call = False
        self._answer_id = answer_id
        self._origins = origins
        self._summarizes = summarizes
        self._item: Json | None = None
        self._place: Json = {}
        self._texts: list[str] = []
        self._log_probs: list[Json] = []

    def read(self, event: Event, log_probs: Sequence[Json] = ()) -> list[Json]:
        """Add an event of the parser.

        Args:
            log_probs: log probabilities of the text's tokens, as in a message's `logprobs`.
        """
        if isinstance(event, ParsedText):
            return [*self._continue("message"), self._delta(event.text, log_probs)]
        if isinstance(event, ReasoningDelta):
            self.has_reasoned = True
            return [*self._continue("reasoning"), self._delta(event.text)]
        if isinstance(event, CallStarted):
            return [*self._end(), *self._begin_call(event.name)]
        if isinstance(event, ArgumentsDelta):
            delta = self._delta(event.json)
            # A custom tool's input is a string within these arguments.
            return [] if self._is_custom() else [delta]
        self.has_cut_call |= not event.complete
        return self._end(is_whole=event.complete)

    def finish(self, reason: FinishReason) -> list[Json]:
        """Finish the choice. If it has neither text nor calls, it gets an empty message."""
        has_stopped = reason is FinishReason.STOP
        events = self._end(is_whole=has_stopped)
        if not self.items or (has_stopped and self.items[-1]["type"] == "reasoning"):
            events += [*self._begin("message"), *self._end(is_whole=has_stopped)]
        return events

    def _continue(self, kind: str) -> list[Json]:
        if self._item is not None and self._item["type"] == kind:
            return []
        return [*self._end(), *self._begin(kind)]

    def _is_custom(self) -> bool:
        return self._item is not None and self._item["type"] == "custom_tool_call"

    def _begin_call(self, function: str) -> list[Json]:
        origin = self._origins.get(function, Origin(function))
        call = {"name": origin.name}
        if origin.namespace is not None:
            call["namespace"] = origin.namespace
        if origin.is_custom:
            return self._begin("custom_tool_call", {**call, "input": ""})
        return self._begin("function_call", {**call, "arguments": ""})

    def _begin(self, kind: str, call: Json | None = None) -> list[Json]:
        index = len(self.items)
        id_ = f"{self._answer_id}_{index}"
        item: Json = {"id": f"{_CHANNELS[kind][0]}_{id_}", "type": kind, "status": "in_progress"}
        self._item, self._texts, self._log_probs = item, [], []
        self._place = {"item_id": item["id"], "output_index": index}
        added: Json = {"type": "response.output_item.added", "output_index": index, "item": item}
        if call is not None:
            item |= {"call_id": f"call_{id_}", **call}
            return [added]
        part = self._part(kind, "")
        if kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
            if self._summarizes:
                self._place["summary_index"] = 0
                return [added, self._event("response.reasoning_summary_part.added", part=part)]
        item["content"] = []
        self._place["content_index"] = 0
        return [added, self._event("response.content_part.added", part=part)]

    def _channel(self, kind: str) -> str:
        """Return the name of the events for an item's text."""
        return _SUMMARY if kind == "reasoning" and self._summarizes else _CHANNELS[kind][1]

    def _delta(self, text: str, log_probs: Sequence[Json] = ()) -> Json:
        assert self._item is not None
        self._texts.append(text)
        kind = self._item["type"]
        event = self._event(f"response.{self._channel(kind)}.delta", delta=text)
        if kind == "message":
            self._log_probs += log_probs
            event["logprobs"] = _without_bytes(log_probs)
        return event

    def _end(self, *, is_whole: bool = True) -> list[Json]:
        """Finish the open item, if there is one.

        The arguments of a truncated call are never announced.
        """
        if self._item is None:
            return []
        kind, text, events = self._item["type"], "".join(self._texts), []
        done = f"response.{self._channel(kind)}.done"
        item = {**self._item, "status": "completed" if is_whole else "incomplete"}
        if kind == "function_call":
            item["arguments"] = text
            if is_whole:
                events.append(self._event(done, arguments=text))
        elif kind == "custom_tool_call":
            item["input"] = text = custom_input(text)
            if is_whole:
                delta = f"response.{_CHANNELS[kind][1]}.delta"
                events += [self._event(delta, delta=text), self._event(done, input=text)]
        elif kind == "reasoning" and self._summarizes:
            part = self._part(kind, text)
            item["summary"] = [part]
            state = {} if is_whole else {"status": "incomplete"}
            ended = "response.reasoning_summary_part.done"
            events += [self._event(done, text=text), self._event(ended, part=part, **state)]
        else:
            part = self._part(kind, text)
            item["content"] = [part]
            log_probs = {"logprobs": _without_bytes(self._log_probs)} if kind == "message" else {}
            events.append(self._event(done, text=text, **log_probs))
            events.append(self._event("response.content_part.done", part=part))
        index = len(self.items)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        self.items.append(item)
        self._item = None
        return events

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, **self._place, **fields}

    def _part(self, kind: str, text: str) -> Json:
        if kind == "reasoning":
            return {"type": "summary_text" if self._summarizes else "reasoning_text", "text": text}
        part: Json = {"type": _CHANNELS[kind][1], "text": text}
        return {**part, "annotations": [], "logprobs": [*self._log_probs]}


def without_cut_calls(events: Iterable[Event]) -> Iterator[Event]:
    """Turn calls with incomplete arguments into text.

    Args:
        events: all events of a choice.
    """
    events = list(events)
    cut = {event.index for event in events if isinstance(event, CallEnded) and not event.complete}
    for event in events:
        if isinstance(event, ParsedText | ReasoningDelta) or event.index not in cut:
            yield event
        elif isinstance(event, CallStarted):
            yield ParsedText(call_as_text(event.name))
        elif isinstance(event, ArgumentsDelta):
            yield ParsedText(event.json)


def _without_bytes(log_probs: Iterable[Json]) -> list[Json]:
    """Return log probabilities in the form that events use."""
    return [
        {
            "token": token["token"],
            "logprob": token["logprob"],
            "top_logprobs": [
                {"token": other["token"], "logprob": other["logprob"]}
                for other in token["top_logprobs"]
            ],
        }
        for token in log_probs
    ]


class ResponseObject:
    """The response to one call.

    Args:
        answer_id: unique id, without the API's prefix.
        created_s: seconds since 1970.

    Attributes:
        output: its items.
    """

    def __init__(self, call: ResponsesCall, answer_id: str, created_s: int) -> None:
        self.output = OutputItems(answer_id, call.origins, summarizes=call.summarizes)
        self._call = call
        self._parser = None if call.new_parser is None else call.new_parser()
        self._fields: Json = {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": created_s,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            **call.echo,
        }

    def feed(self, text: str) -> Sequence[Event]:
        """Parse more text."""
        return [ParsedText(text)] if self._parser is None else self._parser.feed(text)

    def finish(self, reason: FinishReason) -> Sequence[Event]:
        """Finish the text."""
        if self._parser is None:
            return ()
        return self._parser.finish(is_cut=reason is FinishReason.LENGTH)

    def log_probs(self, tokens: Sequence[Token]) -> list[Json]:
        """Return the log probabilities of tokens, if requested."""
        if self._call.alternatives is None:
            return []
        shape = ChatShape(alternatives=self._call.alternatives)
        found = shape.log_probs_of(tokens)
        return [] if found is None else list(found["content"])

    def in_progress(self) -> Json:
        """Return the response before its first item."""
        return self._fields

    def ended(self, end: GenerationEnd) -> Json:
        """Return the response after its last item."""
        fields = {**self._fields, "status": "completed", "output": self.output.items}
        if end.reason is FinishReason.LENGTH:
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        elif self.output.has_cut_call:
            fields["incomplete_details"] = {"reason": None}
        if fields["incomplete_details"]:
            fields["status"] = "incomplete"
        fields["usage"] = _usage(end.usage, has_reasoned=self.output.has_reasoned)
        return fields

    def failed(self, error: TrussError) -> Json:
        """Return the response with the items that finished before an error."""
        details = {"code": _error_code(error), "message": error.message}
        items = self.output.items
        return {**self._fields, "status": "failed", "error": details, "output": items}


class WholeResponse(WholeWriter):
    """Collects the choice of one call into one response."""

    def __init__(self, answer: ResponseObject) -> None:
        super().__init__()
        self._answer = answer

    def body(self) -> Json:
        collected, end = self.ended(0)
        answer = self._answer
        log_probs = answer.log_probs(collected.tokens)
        events = [*answer.feed(collected.text), *answer.finish(end.reason)]
        for event in without_cut_calls(events):
            answer.output.read(event, log_probs)
        answer.output.finish(end.reason)
        return answer.ended(end)


class ResponseEvents:
    """Turns the choice of one call into server-sent events."""

    def __init__(self, answer: ResponseObject) -> None:
        self._answer = answer
        self._sequence_number = 0
        self._end: GenerationEnd | None = None

    def push(self, item: AnswerItem) -> bytes:
        answer, opening = self._answer, self._opening()
        if isinstance(item, GenerationEnd):
            self._end = item
            parts = answer.finish(item.reason)
            last = [event for part in parts for event in answer.output.read(part)]
            return opening + self._events([*last, *answer.output.finish(item.reason)])
        log_probs = answer.log_probs(item.tokens)
        parts = answer.feed(item.text)
        return opening + b"".join(
            self._events(answer.output.read(part, log_probs)) for part in parts
        )

    def end(self) -> bytes:
        assert self._end is not None, "an answer ends before its stream"
        response = self._answer.ended(self._end)
        return self._events([{"type": f"response.{response['status']}", "response": response}])

    def error(self, error: TrussError) -> bytes:
        """Return the last events of a failed stream."""
        details = {"code": error.code, "message": error.message, "param": error.param}
        failed = {"type": "response.failed", "response": self._answer.failed(error)}
        return self._opening() + self._events([{"type": "error", **details}, failed])

    def _opening(self) -> bytes:
        if self._sequence_number:
            return b""
        response = self._answer.in_progress()
        kinds = ("response.created", "response.in_progress")
        return self._events([{"type": kind, "response": response} for kind in kinds])

    def _events(self, events: Iterable[Json]) -> bytes:
        encoded = []
        for event in events:
            event["sequence_number"] = self._sequence_number
            self._sequence_number += 1
            encoded.append(sse_event(event, event["type"]))
        return b"".join(encoded)


def _usage(usage: Usage, *, has_reasoned: bool) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        # A required field: OpenAI's clients cannot read a response without it.
        "input_tokens_details": {
            "cache_write_tokens": 0,
            "cached_tokens": usage.cached_tokens or 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": (usage.reasoning_tokens or 0) if has_reasoned else 0
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error_code(error: TrussError) -> str:
    """Return OpenAI's closest error code."""
    if isinstance(error, RequestError):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, QueueFull) else "server_error"


@dataclass(frozen=True, slots=True)
class ResponsesAdapter:
    """The protocol of `/v1/responses`.

    Attributes:
        formats: the model's formats of tool calls and reasoning.
        name: its name in metrics and log.
    """

    defaults: Defaults
    formats: ModelFormats
    name: str = "responses"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_response(body, self.defaults, self.formats)
        answer = ResponseObject(call, call_id, int(time.time()))
        if call.stream:
            return Call([call.request], ResponseEvents(answer), SSE_MEDIA_TYPE)
        return Call([call.request], WholeResponse(answer), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
