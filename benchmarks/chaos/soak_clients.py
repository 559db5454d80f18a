"""Clients of every protocol, with guides, long prompts, hostile bodies, and requests left early."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.chaos.clients import LEFT, PREDICT, WHOLE, WRONG, Client, Cut, parts
from benchmarks.hostile.attacks import MOMENTS, REFUSED_UNDER_LOAD, leave, post
from benchmarks.hostile.body import CHAT, COMPLETIONS, INVOCATIONS, MESSAGES, RESPONSES, HostileBody

LIMIT_S = 300.0
"""Longer than any request on a busy machine; only one that never ends takes longer."""

_EVENTS = {"Accept": "text/event-stream"}
_TGI = {"User-Agent": "unknown/None; hf_hub/1.0.0; python/3.12"}
_WORDS = ("river", "glass", "bread", "stars", "bridge", "maps", "rain", "naïve", "猫", "🙂")
_TOKENS, _LONG_WORDS = 40, 1500
_TAIL_BYTES = 1 << 14
_PAUSE_S = 1.0
"""Pause between hostile bodies of one client, which would otherwise keep the server busy."""

_WEATHER = {
    "name": "weather",
    "description": "Return the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a protocol.

    Attributes:
        route: its path.
        body: as JSON.
        end: regular expression that only matches the end of a complete answer.
        headers: further ones.
    """

    route: str
    body: dict[str, Any]
    end: bytes
    headers: dict[str, str] | None = None


def _prompt(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randint(3, 40)))


def _messages(chance: random.Random) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": _prompt(chance)},
        {"role": "user", "content": _prompt(chance)},
    ]


def _chat(chance: random.Random, **fields: Any) -> Call:
    body = {"model": "m", "messages": _messages(chance), "max_tokens": _TOKENS, "stream": True}
    return Call(CHAT, {**body, **fields}, rb"data: \[DONE\]")


def _guided(chance: random.Random) -> Call:
    """Request an answer with a guide that no earlier request had."""
    name = f"n{chance.randrange(10**9)}"
    schema = {"type": "object", "properties": {name: {"enum": [1, 2]}}, "required": [name]}
    formats = [
        {"type": "json_schema", "json_schema": {"schema": schema}},
        {"type": "regex", "regex": f"{name}(a|b){{1,9}}"},
        {"type": "grammar", "grammar": f'root ::= "{name}" [a-z]'},
    ]
    return _chat(chance, response_format=chance.choice(formats))


def _inputs(chance: random.Random, **fields: Any) -> dict[str, Any]:
    return {"inputs": _prompt(chance), "parameters": {"max_new_tokens": _TOKENS}, **fields}


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "predict": lambda chance: Call(
        PREDICT, {"prompt": _prompt(chance), "max_tokens": _TOKENS, "stream": False}, b'"text":'
    ),
    "predict events": lambda chance: Call(
        PREDICT, {"prompt": _prompt(chance), "max_tokens": _TOKENS}, b'"finish_reason"', _EVENTS
    ),
    "completions": lambda chance: Call(
        COMPLETIONS,
        {"model": "m", "prompt": [_prompt(chance)] * 2, "max_tokens": _TOKENS, "stream": True},
        rb"data: \[DONE\]",
    ),
    "chat": _chat,
    "chat tools": lambda chance: _chat(
        chance,
        tools=[{"type": "function", "function": _WEATHER}],
        tool_choice=chance.choice(["auto", "required"]),
    ),
    "responses": lambda chance: Call(
        RESPONSES,
        {"model": "m", "input": _prompt(chance), "max_output_tokens": _TOKENS, "stream": True},
        rb'"type": ?"response\.(completed|incomplete)"',
    ),
    "messages": lambda chance: Call(
        MESSAGES,
        {"model": "m", "messages": _messages(chance)[1:], "max_tokens": _TOKENS, "stream": True},
        b"message_stop",
    ),
    "LMI": lambda chance: Call(PREDICT, _inputs(chance), b'"generated_text":'),
    "SageMaker": lambda chance: Call(
        INVOCATIONS, _inputs(chance, stream=True), b'"generated_text":'
    ),
    "TGI": lambda chance: Call(PREDICT, _inputs(chance, stream=True), b'"generated_text":', _TGI),
    "guides": _guided,
    "long prompts": lambda chance: Call(
        PREDICT,
        {
            "prompt": f"{_prompt(chance)} " * 3 + "1 " * chance.randrange(_LONG_WORDS),
            "max_tokens": 4,
        },
        b"",
    ),
}
"""One request maker per protocol."""


class Guest(Client):
    """A client of one protocol, which reads its answers to the end."""

    def __init__(self, kind: str, url: str, chance: random.Random) -> None:
        super().__init__(kind, url, LIMIT_S)
        self._chance = chance

    async def _ask(self, client: httpx.AsyncClient) -> str:
        call = CALLS[self._kind](self._chance)
        tail = b""
        async for part in parts(client, call.body, call.route, call.headers):
            tail = (tail + part)[-_TAIL_BYTES:]
        self._details = repr(tail[-300:])
        if b'"error":{' in tail:
            raise Cut(tail.decode(errors="replace"))
        return WHOLE if tail and re.search(call.end, tail) else WRONG


class Leaver(Client):
    """A client that abandons requests of every protocol, and hostile ones, at a random byte."""

    def __init__(self, url: str, chance: random.Random, bodies: Sequence[HostileBody]) -> None:
        super().__init__("leavers", url, LIMIT_S)
        self._port = urlsplit(url).port or 0
        self._chance = chance
        self._bodies = bodies

    async def _ask(self, client: httpx.AsyncClient) -> str:
        chance = self._chance
        if chance.random() < 0.2:
            hostile = chance.choice(self._bodies)
            route, body = hostile.route, hostile.make()
            await asyncio.sleep(_PAUSE_S)
        else:
            call = CALLS[chance.choice([*CALLS])](chance)
            route, body = call.route, json.dumps(call.body).encode()
        await asyncio.to_thread(leave, self._port, route, body, chance.choice(MOMENTS), chance)
        return LEFT


class Attacker(Client):
    """A client that sends hostile bodies and checks the verdicts."""

    def __init__(self, url: str, chance: random.Random, bodies: Sequence[HostileBody]) -> None:
        super().__init__("hostile bodies", url, LIMIT_S)
        self._port = urlsplit(url).port or 0
        self._chance = chance
        self._bodies = bodies

    async def _ask(self, client: httpx.AsyncClient) -> str:
        hostile = self._chance.choice(self._bodies)
        reply = await asyncio.to_thread(post, self._port, hostile.route, hostile.make())
        await asyncio.sleep(_PAUSE_S)
        self._details = f"{hostile.name}: {reply.status} {reply.content[:200]!r}"
        return str(reply.status) if reply.status in {hostile.status, *REFUSED_UNDER_LOAD} else WRONG
