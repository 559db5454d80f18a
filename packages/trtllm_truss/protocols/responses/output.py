"""The items of one answer, and the events in which they grow.

The contents and order of events follow
https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trtllm_truss.requests import FinishReason
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    TextDelta,
    call_as_text,
)

Json = dict[str, Any]

_CHANNELS = {
    "message": ("msg", "output_text"),
    "reasoning": ("rs", "reasoning_text"),
    "function_call": ("fc", "function_call_arguments"),
}
"""The prefix of the id of an item, and the name of the events of its text, by its type."""


class OutputItems:
    """Builds the items of one answer from the parser's events.

    `read` and `finish` return OpenAI's events without their sequence numbers.

    Args:
        answer_id: makes the ids of items and calls unique.

    Attributes:
        items: the items that have ended.
        has_reasoned: whether there was reasoning.
        has_cut_call: whether a call ended without whole arguments.
    """

    def __init__(self, answer_id: str) -> None:
        self.items: list[Json] = []
        self.has_reasoned = False
        self.has_cut_call = False
        self._answer_id = answer_id
        self._item: Json | None = None
        self._place: Json = {}
        self._texts: list[str] = []
        self._log_probs: list[Json] = []

    def read(self, event: Event, log_probs: Sequence[Json] = ()) -> list[Json]:
        """Add an event of the parser.

        Args:
            event: the event.
            log_probs: those of the text's tokens, as in a message's `logprobs`.
        """
        if isinstance(event, TextDelta):
            return [*self._continue("message"), self._delta(event.text, log_probs)]
        if isinstance(event, ReasoningDelta):
            self.has_reasoned = True
            return [*self._continue("reasoning"), self._delta(event.text)]
        if isinstance(event, CallStarted):
            return [*self._end(), *self._begin("function_call", event.name)]
        if isinstance(event, ArgumentsDelta):
            return [self._delta(event.json)]
        self.has_cut_call |= not event.complete
        return self._end(is_whole=event.complete)

    def finish(self, reason: FinishReason) -> list[Json]:
        """End the answer. Without text and calls it gets an empty message."""
        has_stopped = reason is FinishReason.STOP
        events = self._end(is_whole=has_stopped)
        if not self.items or (has_stopped and self.items[-1]["type"] == "reasoning"):
            events += [*self._begin("message"), *self._end(is_whole=has_stopped)]
        return events

    def _continue(self, kind: str) -> list[Json]:
        if self._item is not None and self._item["type"] == kind:
            return []
        return [*self._end(), *self._begin(kind)]

    def _begin(self, kind: str, name: str = "") -> list[Json]:
        index = len(self.items)
        id_ = f"{self._answer_id}_{index}"
        item: Json = {"id": f"{_CHANNELS[kind][0]}_{id_}", "type": kind, "status": "in_progress"}
        self._item, self._texts, self._log_probs = item, [], []
        self._place = {"item_id": item["id"], "output_index": index}
        added: Json = {"type": "response.output_item.added", "output_index": index, "item": item}
        if kind == "function_call":
            item |= {"call_id": f"call_{id_}", "name": name, "arguments": ""}
            return [added]
        if kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
        item["content"] = []
        self._place["content_index"] = 0
        return [added, self._event("response.content_part.added", part=self._part(kind, ""))]

    def _delta(self, text: str, log_probs: Sequence[Json] = ()) -> Json:
        assert self._item is not None
        self._texts.append(text)
        kind = self._item["type"]
        event = self._event(f"response.{_CHANNELS[kind][1]}.delta", delta=text)
        if kind == "message":
            self._log_probs += log_probs
            event["logprobs"] = _without_bytes(log_probs)
        return event

    def _end(self, *, is_whole: bool = True) -> list[Json]:
        """End the open item, if there is one. The arguments of a cut call are never announced."""
        if self._item is None:
            return []
        kind, text, events = self._item["type"], "".join(self._texts), []
        done = f"response.{_CHANNELS[kind][1]}.done"
        item = {**self._item, "status": "completed" if is_whole else "incomplete"}
        if kind == "function_call":
            item["arguments"] = text
            if is_whole:
                events.append(self._event(done, arguments=text))
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
        part: Json = {"type": _CHANNELS[kind][1], "text": text}
        if kind == "reasoning":
            return part
        return {**part, "annotations": [], "logprobs": [*self._log_probs]}


def without_cut_calls(events: Iterable[Event]) -> Iterator[Event]:
    """Turn calls without whole arguments into text.

    Args:
        events: all events of an answer.
    """
    events = list(events)
    cut = {event.index for event in events if isinstance(event, CallEnded) and not event.complete}
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta) or event.index not in cut:
            yield event
        elif isinstance(event, CallStarted):
            yield TextDelta(call_as_text(event.name))
        elif isinstance(event, ArgumentsDelta):
            yield TextDelta(event.json)


def _without_bytes(log_probs: Iterable[Json]) -> list[Json]:
    """Return log probabilities in the form of events."""
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
