"""OpenAI's APIs as used by endpoints, and messages with reasoning and tool calls.

`/tokenize` and `/detokenize` have vLLM's bodies and responses. Source:
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from trtllm_truss.errors import InvalidRequest, NotServed, TrussError
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    CollectedAnswer,
    Defaults,
    WholeWriter,
)
from trtllm_truss.protocols.openai.answers import (
    ChatShape,
    EventStream,
    OpenAICall,
    UsageCount,
    WholeAnswer,
    chunk_choice,
    error_body,
)
from trtllm_truss.protocols.openai.body import parse_completion, token_ids
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, TextDelta, Token
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallStarted,
    Event,
    ParsedText,
    ReasoningDelta,
    call_as_text,
)
from trtllm_truss.validation import shown

TOOL_CALLS = "tool_calls"
Json = dict[str, Any]


class MessageParser:
    """Parses the text of one choice into OpenAI deltas.

    Attributes:
        complete: indexes of the calls that finished with whole arguments.
        calls: indexes of the message's calls, including truncated ones if a call was requested.
        has_reasoned: there was reasoning.
    """

    def __init__(self, call: OpenAICall) -> None:
        assert call.new_parser is not None
        self._call = call
        self._parser = call.new_parser()
        self.complete: set[int] = set()
        self.calls: set[int] = set()
        self.has_reasoned = False

    def feed(self, text: str) -> list[Json]:
        """Parse more text."""
        return self._deltas(self._parser.feed(text))

    def finish(self, reason: FinishReason) -> list[Json]:
        """Finish the text."""
        return self._deltas(self._parser.finish(is_cut=reason is FinishReason.LENGTH))

    def finish_reason(self, reason: FinishReason) -> str:
        """Return the message's finish reason, once it has finished.

        As in OpenAI's API, a call of a function that the caller specified finishes with `stop`.
        """
        if reason is FinishReason.STOP and self.complete and not self._call.names_function:
            return TOOL_CALLS
        return reason.value

    def _deltas(self, events: Iterable[Event]) -> list[Json]:
        return [delta for event in events if (delta := self._delta(event))]

    def _delta(self, event: Event) -> Json | None:
        if isinstance(event, ParsedText):
            return {"content": event.text}
        if isinstance(event, ReasoningDelta):
            self.has_reasoned = True
            return {"reasoning_content": event.text} if self._call.include_reasoning else None
        if isinstance(event, CallStarted):
            call = {
                "index": event.index,
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            return {TOOL_CALLS: [call]}
        if isinstance(event, ArgumentsDelta):
            function = {"arguments": event.json}
            return {TOOL_CALLS: [{"index": event.index, "function": function}]}
        if event.complete:
            self.complete.add(event.index)
        if event.complete or self._call.forces_call:
            self.calls.add(event.index)
        return None


class MessageStream(EventStream):
    """Turns the choices of one call into server-sent events. The first delta has no content."""

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        super().__init__(call, answer_id, created_s)
        assert isinstance(call.shape, ChatShape)
        self._shape = call.shape
        self._messages: dict[int, MessageParser] = {}
        self._tokens: dict[int, list[Token]] = {}

    def push(self, item: AnswerItem) -> bytes:
        index, events = item.index, b""
        message = self._messages.get(index)
        if message is None:
            message = self._messages[index] = MessageParser(self.call)
            self._tokens[index] = []
            self.usage.begin(item)
            events = self.event([chunk_choice(index, {"role": "assistant", "content": None})])
        if isinstance(item, GenerationEnd):
            deltas = message.finish(item.reason)
            self.usage.add(item, has_reasoned=message.has_reasoned)
            events += self._parts(index, deltas)
            reason = message.finish_reason(item.reason)
            log_probs = self._log_probs(index)
            return events + self.event(
                [chunk_choice(index, {}, log_probs=log_probs, reason=reason)]
            )
        self._tokens[index] += item.tokens
        deltas = message.feed(item.text)
        self.usage.add(item, has_reasoned=message.has_reasoned)
        return events + self._parts(index, deltas)

    def _parts(self, index: int, deltas: Iterable[Json]) -> bytes:
        return b"".join(
            self.event([chunk_choice(index, delta, log_probs=self._log_probs(index))])
            for delta in deltas
        )

    def _log_probs(self, index: int) -> Json | None:
        """Return the field `logprobs` for the tokens since the last event."""
        tokens, self._tokens[index] = self._tokens[index], []
        return self._shape.log_probs_of(tokens) if tokens else None


class CollectedChat(WholeAnswer):
    """Collects the choices of one call into one object, parsing each as it arrives."""

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        super().__init__(call, answer_id, created_s)
        self._messages: defaultdict[int, tuple[MessageParser, JoinedDeltas]] = defaultdict(
            lambda: (MessageParser(call), JoinedDeltas())
        )

    def add(self, answer: CollectedAnswer, delta: TextDelta) -> None:
        message, joined = self._messages[delta.index]
        joined.add(message.feed(delta.text))

    def choice(self, answer: CollectedAnswer, end: GenerationEnd, usage: UsageCount) -> Json:
        message, joined = self._messages[end.index]
        joined.add(message.finish(end.reason))
        usage.add(end, has_reasoned=message.has_reasoned)
        return {
            "index": end.index,
            "message": {"role": "assistant", **joined.fields(message.calls), "refusal": None},
            "finish_reason": message.finish_reason(end.reason),
        }


class JoinedDeltas:
    """Joins the deltas of one choice into the fields of a message."""

    def __init__(self) -> None:
        self._content, self._reasoning = StringIO(), StringIO()
        self._calls: dict[int, tuple[Json, StringIO]] = {}

    def add(self, deltas: Iterable[Json]) -> None:
        """Add the next deltas."""
        for delta in deltas:
            self._content.write(delta.get("content", ""))
            self._reasoning.write(delta.get("reasoning_content", ""))
            for call in delta.get(TOOL_CALLS, ()):
                _, arguments = self._calls.setdefault(call["index"], (call, StringIO()))
                arguments.write(call["function"]["arguments"])

    def fields(self, kept: Collection[int]) -> Json:
        """Return the fields of the whole message.

        Content is null if the message has only calls.

        Args:
            kept: indexes of the calls that remain calls; others become text.
        """
        calls = []
        for index, (call, arguments) in sorted(self._calls.items()):
            function = {**call["function"], "arguments": arguments.getvalue()}
            if index in kept:
                calls.append({**_without_index(call), "function": function})
            else:
                self._content.write(call_as_text(function["name"], function["arguments"]))
        fields: Json = {"content": self._content.getvalue()}
        if thoughts := self._reasoning.getvalue():
            fields["reasoning_content"] = thoughts
        if calls:
            fields["content"] = fields["content"] or None
            fields[TOOL_CALLS] = calls
        return fields


def _without_index(call: Json) -> Json:
    return {name: value for name, value in call.items() if name != "index"}


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenAIAdapter:
    """One of OpenAI's APIs.

    Attributes:
        parse: the parser of its bodies.
        name: its name in metrics and log.
    """

    parse: Callable[[Mapping[str, Any], Defaults], OpenAICall]
    defaults: Defaults
    name: str

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = self.parse(body, self.defaults)
        created_s = int(time.time())
        if call.stream:
            events = EventStream if call.new_parser is None else MessageStream
            return Call(call.requests, events(call, call_id, created_s), SSE_MEDIA_TYPE)
        whole = WholeAnswer if call.new_parser is None else CollectedChat
        return Call(call.requests, whole(call, call_id, created_s), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


@dataclass(frozen=True, slots=True)
class EmbeddingsAdapter:
    """Refuses embeddings: this server generates text."""

    name: str = "embeddings"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        raise NotServed(
            "embeddings are not served: the engine generates text. Use a deployment of an "
            "embedding model."
        )

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


def usable_defaults(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recommended defaults that a body accepts; log the others.

    With an unsupported value, such as a `top_k` of 2000, each request that omits the field would be
    refused.

    Args:
        recommended: the values of `generation_config.json`, by the predict body's field names.
    """
    usable = {}
    for name, value in recommended.items():
        try:
            parse_completion({"prompt": "Hello", name: value}, {})
        except InvalidRequest as refused:
            logger.warning("generation_config.json: %s is not used: %s", name, refused.message)
        else:
            usable[name] = value
    return usable


_STRINGS = "return_token_strs"


class _Tokens(WholeWriter):
    def __init__(self, context_tokens: int, *, with_texts: bool) -> None:
        super().__init__()
        self._context_tokens = context_tokens
        self._with_texts = with_texts

    def body(self) -> Any:
        tokens = self.ended(0)[1].prompt
        return {
            "count": len(tokens),
            "max_model_len": self._context_tokens,
            "tokens": [token.id for token in tokens],
            "token_strs": [token.text for token in tokens] if self._with_texts else None,
        }


class _Text(WholeWriter):
    def body(self) -> Any:
        return {"prompt": self.ended(0)[0].text}


@dataclass(frozen=True, slots=True)
class TokenizeAdapter:
    """Returns the token ids of a text or of a conversation.

    Attributes:
        chat: reads bodies with `messages`.
        completion: reads bodies with `prompt`.
        context_tokens: the engine's limit of prompt and output.
    """

    chat: OpenAIAdapter
    completion: OpenAIAdapter
    context_tokens: int
    name: str = "tokenize"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        adapter = self.chat if "messages" in body else self.completion
        fields = {name: value for name, value in body.items() if name != _STRINGS}
        with_texts = body.get(_STRINGS)
        if not isinstance(with_texts, bool | None):
            raise InvalidRequest(
                f"{_STRINGS} is {shown(with_texts)}; it must be true or false.", param=_STRINGS
            )
        is_empty = fields.get("prompt") in ("", [])
        if is_empty:
            fields["prompt"] = "-"
        request, *others = adapter.parse(fields, {}).requests
        if is_empty:
            as_ids = {"prompt": None, "prompt_ids": ()}
            request = replace(request, **({"prompt": ""} if body["prompt"] == "" else as_ids))
        if others:
            raise InvalidRequest(
                f"prompt holds {1 + len(others)} prompts; send one.", param="prompt"
            )
        # the ids of a prompt beyond the context were not checked
        if request.prompt_ids is not None:
            token_ids([*request.prompt_ids], "prompt", "prompt")
        request = replace(
            request, max_tokens=0, guide=None, echo=False, prompt_details=True, counts_only=True
        )
        writer = _Tokens(self.context_tokens, with_texts=bool(with_texts))
        return Call([request], writer, JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


@dataclass(frozen=True, slots=True)
class DetokenizeAdapter:
    """Returns the text of token ids, including special tokens.

    Attributes:
        completion: parses the ids as a prompt.
    """

    completion: OpenAIAdapter
    name: str = "detokenize"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        unknown = body.keys() - {"model", "tokens"}
        if unknown or not isinstance(tokens := body.get("tokens"), list):
            field = min(unknown, default="tokens")
            raise InvalidRequest(
                f"{shown(field)} is {shown(body.get(field))}; send tokens, a list of ids.",
                param="tokens",
            )
        known: Json = {"prompt": "-", "echo": True, "skip_special_tokens": False}
        if "model" in body:
            known["model"] = body["model"]
        ids = token_ids(tokens, "tokens", "tokens")
        (request,) = self.completion.parse(known, {}).requests
        names = {**request.names, "prompt_ids": "tokens"}
        request = replace(
            request, prompt=None, prompt_ids=ids, max_tokens=0, names=names, counts_only=True
        )
        return Call([request], _Text(), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
