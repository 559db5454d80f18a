"""Clients of every kind, which compare each answer with the expected one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.chaos.texts import Texts

PREDICT, CHAT = "/v1/models/model:predict", "/v1/chat/completions"
KINDS = (
    *("plain", "plain", "events", "events", "json", "json", "chat", "chat", "chat json"),
    *("leaver", "slow", "bad"),
)
"""The kinds of clients 0, 1, …, repeated."""

WHOLE, CUT, LEFT, WRONG, HUNG, LOST = "whole", "cut", "left", "wrong", "hung", "lost"
INTERNAL = "internal"
FAULTS = (WRONG, HUNG, LOST, INTERNAL)
"""Outcomes that no request may have; `lost` is one without a status from a living server."""

_LIMIT_S = 60.0
_PAUSE_S = 0.3
_TOKENS = 120
_LONG_TOKENS = 400
_SLOW_READ_S = 0.05
_LEAVE_AFTER = 5
_EVENTS = {"Accept": "text/event-stream"}
_EXAMPLES = 5


@dataclass(slots=True)
class Tally:
    """Counts of request outcomes.

    Attributes:
        ends: by kind of client and outcome; the outcome of a rejected request is its status.
        longest_s: duration of the longest request, without slow readers.
        examples: details of the first few faults.
    """

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    longest_s: float = 0.0
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, end: str, took_s: float, details: str) -> None:
        """Count one request; keep `details` of a fault."""
        self.ends[kind, end] += 1
        if kind != "slow":
            self.longest_s = max(self.longest_s, took_s)
        if end in FAULTS and len(self.examples) < _EXAMPLES:
            self.examples.append(f"{kind}: {end} after {took_s:.1f} s: {details[:300]}")

    def count(self, end: str) -> int:
        """Return the number of requests of all clients with one outcome."""
        return sum(count for (_, each), count in self.ends.items() if each == end)


class Client:
    """A client that sends requests until an event is set.

    Args:
        kind: kind of its requests, in the tally.
        url: URL of the server.
        limit_s: longer requests count as hung.
    """

    def __init__(self, kind: str, url: str, limit_s: float) -> None:
        self._kind = kind
        self._url = url
        self._limit_s = limit_s
        self._details = ""

    async def _ask(self, client: httpx.AsyncClient) -> str:
        """Send one request; return its outcome, and set the details of a fault."""
        raise NotImplementedError

    async def run(self, tally: Tally, over: asyncio.Event) -> None:
        """Send one request after another, each on a new connection."""
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self._url, timeout=None, limits=limits) as client:
            while not over.is_set():
                start = time.monotonic()
                end = await self._end_of_one(client)
                tally.add(self._kind, end, time.monotonic() - start, self._details)
                if end not in (WHOLE, LEFT):
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(over.wait(), _PAUSE_S)

    async def _end_of_one(self, client: httpx.AsyncClient) -> str:
        self._details = ""
        try:
            return await asyncio.wait_for(self._ask(client), self._limit_s)
        except asyncio.TimeoutError:
            return HUNG
        except Rejected as rejection:
            self._details = rejection.body
            return INTERNAL if rejection.status == 500 else str(rejection.status)
        except Cut as cut:
            self._details = str(cut)
            return INTERNAL if "internal_error" in self._details else CUT
        except httpx.TransportError as error:
            self._details = repr(error)
            return LOST
        except (ValueError, LookupError, TypeError) as error:  # violates its protocol
            self._details = repr(error)
            return WRONG


async def run_clients(
    clients: Sequence[Client], tally: Tally, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """Run all clients until `meanwhile` ends."""
    over = asyncio.Event()
    running = [asyncio.create_task(client.run(tally, over)) for client in clients]
    await meanwhile()
    over.set()
    await asyncio.gather(*running)


class Visitor(Client):
    """A client that sends requests until an event is set.

    Args:
        number: selects the kind.
        seed: seed of the random choices, together with the number.
        url: URL of the server.
        texts: prompts and expected answers.
        max_body_bytes: the server's limit.
    """

    def __init__(self, number: int, seed: int, url: str, texts: Texts, max_body_bytes: int) -> None:
        super().__init__(KINDS[number % len(KINDS)], url, _LIMIT_S)
        self._chance = random.Random(f"{seed} {number}")
        self._texts = texts
        self._max_body_bytes = max_body_bytes
        self._asks: dict[str, Callable[[httpx.AsyncClient], Awaitable[str]]] = {
            "plain": self._plain,
            "events": self._events,
            "json": self._json,
            "chat": self._chat,
            "chat json": self._chat_json,
            "leaver": self._leave,
            "slow": self._slow,
            "bad": self._bad,
        }

    async def _ask(self, client: httpx.AsyncClient) -> str:
        return await self._asks[self._kind](client)

    async def _plain(self, client: httpx.AsyncClient) -> str:
        body, expected = self._completion(_TOKENS)
        return self._compared(b"".join([part async for part in parts(client, body)]), expected)

    async def _slow(self, client: httpx.AsyncClient) -> str:
        body, expected = self._completion(_LONG_TOKENS)
        received = b""
        async for part in parts(client, body):
            received += part
            await asyncio.sleep(_SLOW_READ_S)
        return self._compared(received, expected)

    async def _leave(self, client: httpx.AsyncClient) -> str:
        body, _ = self._completion(_LONG_TOKENS)
        received = parts(client, body)
        for _ in range(self._chance.randint(0, _LEAVE_AFTER)):
            with suppress(StopAsyncIteration):
                await anext(received)
        await received.aclose()  # type: ignore[attr-defined]
        return LEFT

    async def _json(self, client: httpx.AsyncClient) -> str:
        body, expected = self._completion(_TOKENS)
        answer = await _whole(client, PREDICT, {**body, "stream": False})
        return self._compared(answer["text"], expected)

    async def _events(self, client: httpx.AsyncClient) -> str:
        body, expected = self._completion(_TOKENS)
        text, finished = "", False
        async for line in _lines(client, PREDICT, body, _EVENTS):
            event = json.loads(line)
            if "error" in event:
                raise Cut(line)
            text += event.get("text", "")
            finished = "finish_reason" in event
        return self._compared(text, expected) if finished else self._compared(text, None)

    async def _chat(self, client: httpx.AsyncClient) -> str:
        body, expected = self._conversation()
        text, last = "", ""
        async for line in _lines(client, CHAT, {**body, "stream": True}):
            last = line
            if line != "[DONE]":
                event = json.loads(line)
                if "error" in event:
                    raise Cut(line)
                text += event["choices"][0]["delta"].get("content") or ""
        return self._compared(text, expected if last == "[DONE]" else None)

    async def _chat_json(self, client: httpx.AsyncClient) -> str:
        body, expected = self._conversation()
        answer = await _whole(client, CHAT, body)
        return self._compared(answer["choices"][0]["message"]["content"], expected)

    async def _bad(self, client: httpx.AsyncClient) -> str:
        prompt = self._texts.prompt(self._chance)
        bodies: list[tuple[int, bytes]] = [
            (400, b'{"prompt": '),
            (400, b"[" * 500),
            (400, json.dumps({"prompt": prompt, "max_tokens": 0}).encode()),
            (400, json.dumps({"prompt": prompt, "max_tocens": 5}).encode()),
            (400, json.dumps({"prompt": [prompt] * 100}).encode()),
            (400, json.dumps({"prompt": f"{prompt} " * 4000}).encode()),
            (413, b'{"prompt": "' + b"a" * self._max_body_bytes + b'"}'),
        ]
        status, content = self._chance.choice(bodies)
        answer = await client.post(PREDICT, content=content)
        self._details = f"{content[:40]!r}: {answer.status_code} {answer.text}"
        if answer.status_code == 500:
            return INTERNAL
        return str(answer.status_code) if answer.status_code in (status, 503) else WRONG

    def _completion(self, max_tokens: int) -> tuple[dict[str, Any], str]:
        prompt = self._texts.prompt(self._chance)
        tokens = self._chance.randint(1, max_tokens)
        return {"prompt": prompt, "max_tokens": tokens}, self._texts.completion(prompt, tokens)

    def _conversation(self) -> tuple[dict[str, Any], str]:
        system, user = self._texts.prompt(self._chance), self._texts.prompt(self._chance)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        tokens = self._chance.randint(1, _TOKENS)
        body = {"model": "model", "messages": messages, "max_tokens": tokens}
        return body, self._texts.chat(messages, tokens)

    def _compared(self, received: str | bytes, expected: str | None) -> str:
        """Compare a finished answer; `expected` is None if its protocol's end is missing."""
        text = received.decode() if isinstance(received, bytes) else received
        self._details = f"{text!r} instead of {expected!r}"
        return WHOLE if text == expected else WRONG


class Rejected(Exception):
    """A request was rejected."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Cut(Exception):
    """An answer was visibly truncated."""


async def parts(
    client: httpx.AsyncClient,
    body: dict[str, Any],
    path: str = PREDICT,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[bytes]:
    """Yield a stream's bytes as they arrive.

    Raises:
        Rejected: the status is not 200.
        Cut: the connection ended early.
    """
    async with client.stream("POST", path, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise Rejected(answer.status_code, (await answer.aread()).decode())
        try:
            async for part in answer.aiter_raw():
                yield part
        except httpx.TransportError as error:
            raise Cut(repr(error)) from None


async def _lines(
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> AsyncIterator[str]:
    """Yield the data of server-sent events."""
    rest = b""
    async for part in parts(client, body, path, headers):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ").decode()


async def _whole(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """Return a JSON answer.

    Raises:
        Rejected: the status is not 200.
    """
    answer = await client.post(path, json=body)
    if answer.status_code != 200:
        raise Rejected(answer.status_code, answer.text)
    return answer.json()
