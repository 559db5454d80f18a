"""A conversation over the predict API, with an HTTP client that uses only the standard library."""

from __future__ import annotations

import codecs
import http.client
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trtllm_truss.errors import EngineUnavailable, InvalidRequest, TrussError
from trtllm_truss.local_requests import is_loopback

DEFAULT_URL = "http://localhost:8080"
URL_HELP = (
    "a local server, or the predict URL of a deployed Truss; the variable BASETEN_API_KEY is sent "
    "to remote hosts over https"
)

_LOCAL_PATH = "/v1/models/model:predict"
_API_KEY_VARIABLE = "BASETEN_API_KEY"
_UNAUTHORIZED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_WITHHELD = f". {_API_KEY_VARIABLE} was not sent: it is sent to remote hosts over https only."
CUT_OFF = "the response was cut off; see the server's log."


class ServerResponse:
    """A 200 response; its body can be read once."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def texts(self) -> Iterator[str]:
        """Yield the body as text as it arrives, in whole characters.

        Raises:
            EngineUnavailable: the connection ended before the response did.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := self._response.read1(65536):
                yield decoder.decode(chunk)
        except (http.client.HTTPException, OSError) as error:
            raise EngineUnavailable(CUT_OFF) from error
        if self._response.length:  # shorter than Content-Length; a truncated chunk raises above
            raise EngineUnavailable(CUT_OFF)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a stream of server-sent events."""
        rest = ""
        for text in self.texts():
            *frames, rest = (rest + text).split("\n\n")
            for frame in frames:
                if frame.startswith("data: "):
                    yield json.loads(frame.removeprefix("data: "))

    def json(self) -> dict[str, Any]:
        body = json.loads("".join(self.texts()))
        assert isinstance(body, dict)
        return body


@contextmanager
def post(url: str, body: Mapping[str, object], accept: str = "*/*") -> Iterator[ServerResponse]:
    """Send a request and yield its response; close the connection afterwards.

    A URL without a path gets the route of a local server. The variable `BASETEN_API_KEY` is sent in
    the `Authorization` header that Baseten expects, to remote hosts over https only.

    Raises:
        InvalidRequest: `url` is not an HTTP URL.
        EngineUnavailable: the server is unreachable.
        TrussError: the status is not 200; the message is the server's.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"--url is {url!r}; it must be an http or https URL.")
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    headers = {"Content-Type": "application/json", "Accept": accept}
    api_key = os.environ.get(_API_KEY_VARIABLE)
    key_is_safe = secure and not is_loopback(parts.hostname)
    if api_key and key_is_safe:
        headers["Authorization"] = f"Api-Key {api_key}"
    if f"{parts.path}/".startswith("/v1/") and not parts.path.startswith("/v1/models/"):
        raise InvalidRequest(
            f"--url is {url!r}; give the server without {parts.path}, a route of OpenAI's API."
        )
    path = parts.path if parts.path not in ("", "/") else _LOCAL_PATH
    connection = connect(parts.hostname, parts.port)
    try:
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
        except OSError as error:
            here = is_loopback(parts.hostname)
            raise EngineUnavailable(
                f"cannot connect to {parts.scheme}://{parts.netloc} ({error.strerror or error}); "
                + ("is `trtllm-truss serve` running there?" if here else "correct --url.")
            ) from None
        if response.status != http.client.OK:
            withheld = api_key and not key_is_safe and response.status in _UNAUTHORIZED
            raise TrussError(_error_message(response) + (_WITHHELD if withheld else ""))
        with response:  # otherwise it would keep a connection that the server closes afterwards
            yield ServerResponse(response)
    finally:
        connection.close()


def _error_message(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    return f"{message} (HTTP {response.status})"


REQUEST_LINES = ("Handled request", " request engine_request_id=")
"""Marks of log lines that would interrupt an answer on a terminal."""


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """The summary of an answer.

    Attributes:
        prompt_tokens: tokens of the request, as counted by the tokenizer.
        tokens: number of generated tokens.
        finish_reason: `stop` or `length`.
        first_s: time from the request to the first text; 0 without text.
        whole_s: time from the request to the end.
    """

    prompt_tokens: int
    tokens: int
    finish_reason: str
    first_s: float
    whole_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second from the first text to the end."""
        rest_s = self.whole_s - self.first_s
        return self.tokens / rest_s if rest_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"[{self.tokens} tokens, finish reason {self.finish_reason}; first token after "
            f"{self.first_s:.2f} s, then {self.tokens_per_s:.0f} tokens/s]"
        )


def stream_answer(
    url: str, body: Mapping[str, object], write: Callable[[str], object]
) -> AnswerSummary:
    """Send a request and pass each chunk of the answer to `write` as it arrives.

    Raises:
        EngineUnavailable: the server is unreachable, or the answer was cut off.
        TrussError: the server refused the request, or failed during the answer.
    """
    start = time.monotonic()
    first_s = 0.0
    with post(url, body, accept="text/event-stream") as answer:
        for event in answer.events():
            if "error" in event:
                raise TrussError(event["error"]["message"])
            if "text" in event:
                first_s = first_s or time.monotonic() - start
                write(event["text"])
            else:
                usage = event["usage"]
                return AnswerSummary(
                    prompt_tokens=usage["prompt_tokens"],
                    tokens=usage["completion_tokens"],
                    finish_reason=event["finish_reason"],
                    first_s=first_s,
                    whole_s=time.monotonic() - start,
                )
    raise EngineUnavailable(CUT_OFF)


Write = Callable[[str], object]


@dataclass(slots=True)
class Turn:
    """A question and its answer, which is None until part of it has arrived."""

    question: str
    answer: str | None = None


class Conversation:
    """The messages so far; each answer continues them.

    Args:
        url: a local server or the predict URL of a deployed Truss.
        parameters: fields of the predict body besides `messages`.
        system: the system message; empty for none.

    Attributes:
        system: the system message.
        turns: oldest first.
        summaries: summaries of all complete answers, including those replaced by `retry`.
    """

    def __init__(self, url: str, parameters: Mapping[str, object], system: str = "") -> None:
        self._url = url
        self._parameters = dict(parameters)
        self.system = system
        self.turns: list[Turn] = []
        self.summaries: list[AnswerSummary] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as predict's and OpenAI's field `messages`."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            if turn.answer is not None:
                messages.append({"role": "assistant", "content": turn.answer})
        return messages

    def ask(self, question: str, write: Write) -> AnswerSummary:
        """Send a message and pass the answer to `write` as it arrives.

        A question without an answer is kept for `retry`; the next question replaces it. After
        Ctrl-C, the text received so far is the answer.

        Raises:
            TrussError: the server is unreachable, refused the request or failed.
        """
        if self.turns and self.turns[-1].answer is None:
            self.turns.pop()
        self.turns.append(Turn(question))
        return self._answer(write)

    def retry(self, write: Write) -> AnswerSummary:
        """Replace the last answer.

        Raises:
            InvalidRequest: there is no question yet.
            TrussError: as from `ask`.
        """
        if not self.turns:
            raise InvalidRequest("there is no message to retry; send one first.")
        return self._answer(write)

    def clear(self) -> None:
        """Forget all turns; keep the system message and the statistics."""
        self.turns.clear()

    def save(self, file: Path) -> None:
        """Write `{"messages": […]}` to a new file that only its owner can read.

        Raises:
            InvalidRequest: the file exists or cannot be written.
        """
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"
        try:
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
                opened.write(text)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidRequest(f"{file} cannot be written ({reason}); name a new file.") from None

    def statistics(self) -> str:
        """Describe all complete answers in one line."""
        if not self.summaries:
            return "no answer yet"
        last = self.summaries[-1]
        tokens = sum(summary.tokens for summary in self.summaries)
        first_s = statistics.median(summary.first_s for summary in self.summaries)
        rate = statistics.median(summary.tokens_per_s for summary in self.summaries)
        count = len(self.summaries)
        answers = "1 answer" if count == 1 else f"{count} answers"
        times = f"first token after {first_s:.2f} s, then {rate:.0f} tokens/s"
        return (
            f"{answers}, {tokens} {'token' if tokens == 1 else 'tokens'}; "
            f"{'' if count == 1 else 'medians: '}{times}; context of the last answer: "
            f"{last.prompt_tokens} + {last.tokens} tokens"
        )

    def _answer(self, write: Write) -> AnswerSummary:
        turn = self.turns[-1]
        turn.answer = None
        body = {"messages": self.messages, **self._parameters}

        def take(text: str) -> None:
            turn.answer = (turn.answer or "") + text
            write(text)

        try:
            summary = stream_answer(self._url, body, take)
        except KeyboardInterrupt:
            raise
        except BaseException:
            turn.answer = None  # a chunk whose end nobody asked for
            raise
        turn.answer = turn.answer or ""
        self.summaries.append(summary)
        return summary
