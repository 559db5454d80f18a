"""The interface of a protocol to its endpoint, and limits on JSON bodies.

The limits are in addition to `serving.max_body_bytes`. Each keeps the work of one request on the
event loop below 100 ms.
"""

from __future__ import annotations

import codecs
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import accumulate
from typing import Any, NoReturn, Protocol

from trtllm_truss.errors import BodyTooLarge, InternalError, InvalidRequest, TrussError
from trtllm_truss.requests import AnswerItem, GenerationEnd, GenerationRequest, TextDelta, Token
from trtllm_truss.validation import is_unicode

MAX_NESTING = 64
"""Maximum nesting of arrays and objects. Templates and encoders recurse deeper than the parser."""

MAX_CONTAINERS = 1 << 16
"""Maximum arrays and objects in total."""

MAX_STRINGS = 1 << 16
"""Maximum strings in total, keys included."""

MAX_KEYS = 1 << 15
"""Maximum keys in total: each unknown one costs a kilobyte when rejected."""

MAX_VALUES = 1 << 19
"""Maximum items in total, such as token ids of prompts."""

MAX_FRACTIONS = 1 << 16
"""Maximum decimal points and exponents in total; they make a number ten times as slow to parse."""

MAX_DIGITS = 128
"""Maximum digits of a number: parse time grows with their square."""

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_TOOLS = 1024
MAX_TOOL_CALLS = 1024
MAX_ALL_TOOL_CALLS = 4096
MAX_PROMPTS = 256
MAX_BIASED_TOKENS = 1024

MAX_MODEL_CHARACTERS = 256
"""Maximum length of the model's name, which every event repeats."""

MAX_WORDS = 64
"""Maximum number of stop words, and of bad words."""

MAX_WORD_CHARACTERS = 256
MAX_WORDS_CHARACTERS = 4096
"""Maximum characters of all stop words, or of all bad words.

Each costs a dictionary and a microsecond.
"""

MAX_HELD_FIGURES = 1 << 18
"""Maximum tokens with details, plus alternatives, over all choices of a whole response."""

MAX_GUIDE_CHARACTERS = 1 << 16
"""Maximum length of a JSON schema, regular expression or grammar."""

MAX_TEMPLATE_VARIABLES_CHARACTERS = 1 << 16
"""Maximum length of `chat_template_kwargs` as JSON."""

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)

_LONG_STRING_BYTES = 512
"""Average length of strings from which to search for the next quote is quicker than to split."""

_SHORT_BYTES = 1 << 15
"""Bodies up to this size exceed no count, and their longest numbers take a millisecond."""


def parse_json_object(raw: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse a request body, which must be a JSON object.

    Reject NaN and Infinity, which Python's parser accepts. Check size and shape before building
    any object.

    Args:
        max_bytes: `serving.max_body_bytes`.

    Raises:
        BodyTooLarge: the body has more than `max_bytes`.
        InvalidRequest: the body is not UTF-8, not JSON, not an object, or exceeds a limit.
    """
    if len(raw) > max_bytes:
        raise BodyTooLarge.beyond(max_bytes)
    raw = raw.removeprefix(codecs.BOM_UTF8)  # as RFC 8259, 8.1, allows
    if not raw.strip():
        raise InvalidRequest('the body is empty; send JSON such as {"prompt": "Hello"}.')
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 (byte {raw[error.start]:#04x} at position {error.start}); "
            "encode the JSON as UTF-8."
        ) from None
    _check_shape(raw)
    try:
        body = _decoder.decode(text)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply; send flat fields.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise InvalidRequest(f"the body contains a number that is too long: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(
            f'the body is {_kind(body)}; send a JSON object such as {{"prompt": "Hello"}}.'
        )
    return body


class Budget:
    """Limits on the objects built from texts that contain JSON, shared by all texts of a body.

    Counts are exact for JSON; the parser rejects anything else.

    Args:
        where: location of the texts in the body, for errors.
        param: the field that contains them.
    """

    def __init__(self, where: str = "", param: str | None = None) -> None:
        self._where = where
        self._param = param
        self._spent: Counter[str] = Counter()

    def spend(self, raw: bytes) -> int:
        """Count the contents of a text before building any object.

        Returns:
            The nesting of the text.

        Raises:
            InvalidRequest: the texts exceed a limit.
        """
        has_escaped_quotes = b"\\" in raw and rb"\"" in raw  # else a copy of megabytes is saved
        unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"") if has_escaped_quotes else raw
        quotes = unescaped.count(b'"')
        self._count("strings", quotes // 2, MAX_STRINGS)
        outside = _outside_strings(unescaped, quotes)
        brackets = outside.translate(None, _NOT_BRACKETS)
        self._count("keys", outside.count(b":"), MAX_KEYS)
        self._count("arrays and objects", len(brackets) // 2, MAX_CONTAINERS)
        self._count("values", outside.count(b","), MAX_VALUES)
        self._count("fractions and exponents", _fractions(outside), MAX_FRACTIONS)
        if _LONG_NUMBER in outside.translate(_DIGITS_AS_ZEROS):
            raise InvalidRequest(
                f"the body contains a number that is too long{self._where}; send at most "
                f"{MAX_DIGITS} digits.",
                param=self._param,
            )
        return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)

    def _count(self, unit: str, count: int, maximum: int) -> None:
        self._spent[unit] += count
        if self._spent[unit] > maximum:
            raise InvalidRequest(
                f"the body contains {self._spent[unit]} {unit}{self._where}; at most "
                f"{maximum} are allowed. Send fewer.",
                param=self._param,
            )


def parse_json_text(text: str, budget: Budget) -> Any:
    """Parse a text in the body that is JSON itself.

    Args:
        budget: shared by all such texts in the body.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
        InvalidRequest: the texts exceed a limit.
    """
    if budget.spend(text.encode(errors="surrogatepass")) > MAX_NESTING:
        raise ValueError("nested too deeply")
    return json.loads(text)


def _check_shape(raw: bytes) -> None:
    """Reject a body that would be expensive to parse and validate.

    Raises:
        InvalidRequest: the body exceeds a limit.
    """
    if len(raw) <= _SHORT_BYTES and raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return
    depth = Budget().spend(raw)
    if depth > MAX_NESTING:
        raise InvalidRequest(
            f"the body is nested {depth} levels deep; at most {MAX_NESTING} are allowed. Send "
            "flatter fields."
        )


def _outside_strings(unescaped: bytes, quotes: int) -> bytes:
    """Return what stands outside of the strings of a JSON text without escaped quotes."""
    if quotes * _LONG_STRING_BYTES > len(unescaped):
        return b"".join(unescaped.split(b'"')[::2])
    parts = []  # the strings themselves are not copied
    begin = 0
    while (quote := unescaped.find(b'"', begin)) >= 0:
        parts.append(unescaped[begin:quote])
        begin = unescaped.find(b'"', quote + 1) + 1 or len(unescaped)
    return b"".join([*parts, unescaped[begin:]])


def _fractions(outside: bytes) -> int:
    """Count decimal points and exponents of numbers; true and false contain an `e` too."""
    exponents = outside.count(b"e") + outside.count(b"E")
    words = outside.count(b"true") + outside.count(b"false")
    return outside.count(b".") + exponents - words


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body contains {name}, which is not JSON; send a finite number.")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return json.dumps(value)[:40]


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)

JSON_MEDIA_TYPE = "application/json"
SSE_MEDIA_TYPE = "text/event-stream"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

# `json.dumps` builds an encoder in every call with options.
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_compact = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode

Defaults = Mapping[str, Any]
"""Values of missing fields, by the predict body's field names."""


class Writer(Protocol):
    """Encodes the choices of one call."""

    def push(self, item: AnswerItem) -> bytes:
        """Encode the next item; may return nothing."""

    def end(self) -> bytes:
        """Encode the end of the response."""

    def error(self, error: TrussError) -> bytes:
        """Encode an error within a stream.

        Raises:
            TrussError: `error`, if the protocol can only abort the response.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body.

    Attributes:
        media_type: content type; JSON is sent whole, other types are streamed.
    """

    requests: Sequence[GenerationRequest]
    writer: Writer
    media_type: str


class ApiAdapter(Protocol):
    """One protocol."""

    @property
    def name(self) -> str:
        """The protocol's name in metrics and log."""

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        """Parse a body.

        Args:
            accept: the `Accept` header or an empty string.
            call_id: unique id for responses that contain an id.

        Raises:
            InvalidRequest: the body is invalid or has unsupported fields.
        """

    def error_body(self, error: TrussError) -> Any:
        """The JSON value of an error response."""


@dataclass(slots=True)
class CollectedAnswer:
    """The collected items of one choice; `end` is None until it has finished."""

    texts: StringIO = field(default_factory=StringIO)
    tokens: list[Token] = field(default_factory=list)
    end: GenerationEnd | None = None

    @property
    def text(self) -> str:
        return self.texts.getvalue()


class WholeWriter:
    """A `Writer` of one JSON value, built by `body` from all choices.

    Expensive work, such as encoding alternatives, belongs in `add`: `end` blocks the event loop.
    """

    def __init__(self) -> None:
        self._answers: defaultdict[int, CollectedAnswer] = defaultdict(CollectedAnswer)
        self._figures = 0

    def push(self, item: AnswerItem) -> bytes:
        """Collect the next item.

        Raises:
            InvalidRequest: the response would contain too many tokens and alternatives.
        """
        answer = self._answers[item.index]
        if isinstance(item, TextDelta):
            self._count(item)
            self.add(answer, item)
        else:
            answer.end = item
        return b""

    def add(self, answer: CollectedAnswer, delta: TextDelta) -> None:
        """Collect a part of a choice."""
        answer.texts.write(delta.text)
        answer.tokens.extend(delta.tokens)

    def _count(self, delta: TextDelta) -> None:
        self._figures += sum(1 + len(token.alternatives) for token in delta.tokens)
        if self._figures > MAX_HELD_FIGURES:
            raise InvalidRequest(
                f"the response would contain more than {MAX_HELD_FIGURES} tokens with their "
                "details and alternatives; stream it, or ask for fewer prompts, choices, "
                "tokens or alternatives."
            )

    def end(self) -> bytes:
        return json_bytes(self.body())

    def error(self, error: TrussError) -> bytes:
        raise error

    def body(self) -> Any:
        """Build the JSON value.

        Raises:
            InternalError: a choice has not finished.
        """
        raise NotImplementedError

    def ended(self, index: int) -> tuple[CollectedAnswer, GenerationEnd]:
        """Return a choice and its end.

        Raises:
            InternalError: the choice has not finished.
        """
        answer = self._answers[index]
        if answer.end is None:
            raise InternalError(f"answer {index} has no end.")
        return answer, answer.end


class _PromptCount(WholeWriter):
    """Writes the number of tokens in a prompt."""

    def __init__(self, kind: Mapping[str, Any]) -> None:
        super().__init__()
        self._kind = kind

    def body(self) -> Any:
        return {**self._kind, "input_tokens": self.ended(0)[1].usage.prompt_tokens}


@dataclass(frozen=True, slots=True)
class CountAdapter:
    """Counts the tokens of prompts; a protocol that generates nothing.

    Attributes:
        protocol: reads the bodies and writes the errors.
        name: its name in metrics and log.
        filling: fields that the protocol requires beyond the prompt.
        kind: further fields of the response.
    """

    protocol: ApiAdapter
    name: str
    filling: Mapping[str, Any] = field(default_factory=dict)
    kind: Mapping[str, Any] = field(default_factory=dict)

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        (request,) = self.protocol.read({**self.filling, **body}, accept, call_id).requests
        request = replace(request, max_tokens=0, guide=None, echo=False, counts_only=True)
        return Call([request], _PromptCount(self.kind), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return self.protocol.error_body(error)


def json_bytes(value: Any) -> bytes:
    """Encode like Starlette's `JSONResponse`."""
    return _encode_compact(value).encode()


def is_encodable(value: Any) -> bool:
    """Return whether `json_bytes` can encode a value of a body, without the cost of its text."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            if not (value.isascii() or is_unicode(value)):
                return False
        elif isinstance(value, float):
            if not math.isfinite(value):
                return False
        elif isinstance(value, Mapping):
            values += value
            values += value.values()
        elif isinstance(value, list) and not _ALWAYS_ENCODABLE.issuperset(map(type, value)):
            values += value
    return True


_ALWAYS_ENCODABLE = frozenset({int, bool, type(None)})


class EncodedList:
    """A JSON list whose items are encoded when they are added."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def extend(self, items: Sequence[Any]) -> None:
        if items:
            self._parts.append(json_bytes(items)[1:-1])

    def json(self) -> bytes:
        return b"[" + b",".join(self._parts) + b"]"


def sse_event(value: Any, name: str = "") -> bytes:
    """Encode one server-sent event, optionally named."""
    head = f"event: {name}\ndata: " if name else "data: "
    return f"{head}{_encode(value)}\n\n".encode()


def sse_text(text: str) -> bytes:
    """Encode the event `{"text": …}` in a third of the time that `sse_event` takes."""
    return f'data: {{"text": {_encode(text)}}}\n\n'.encode()
