"""HTTP exchanges of every protocol with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from starlette.types import Message, Scope

from tests.fakes.engine import ENGINE, FakeEngine, Step
from tests.frozen.cases import CASES, Case
from tests.support.smollm2 import smollm2_tokenizer
from trtllm_truss.endpoints.application import Application
from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.triton.client.engine_messages import EngineRequest

CONTEXT_TOKENS = 512
MODEL = "frozen"
KEY = "a-key"
TEMPLATE = """\
{% if tools %}<|im_start|>system
Call a function within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>{% for tool in tools %}

{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with calls in Hermes' format."""

_NORMALIZED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"\b(chatcmpl|cmpl|msg|resp|call|toolu|fc|rs|req|gen)([-_])[0-9A-Za-z]{9,}(?![0-9A-Za-z])",
            r"\1\2ID",
        ),
        (r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "ID"),
        (r'("seed": ?)\d{7,}', r"\1RANDOM"),
        (r'("(?:created|created_at|completed_at)": ?)\d+(?:\.\d+)?', r"\1TIME"),
    )
]
_NUMBERS = re.compile(r"\[[-\s\d,.]+\]")
_RANDOM_SEEDS = 1 << 20
"""The server's own seeds, of 63 bits, are larger but for one in 10**13."""

_SHOWN_CHARACTERS = 1000
_SHOWN_HEADERS = ("allow", "content-type", "retry-after", "www-authenticate")


class _Service(FakeEngine):
    """A fake engine that a whole application can serve."""

    def is_healthy(self) -> bool:
        return True


class Exchange(NamedTuple):
    """A response, and the requests that the engine got for it.

    Attributes:
        complete: whether the body was finished; the server closes the connection otherwise.
    """

    status: int
    headers: Mapping[str, str]
    body: str
    complete: bool
    requests: Sequence[EngineRequest]


def frozen_tokenizer() -> TextTokenizer:
    """Return SmolLM2's tokenizer with a template that offers tools."""
    backend = smollm2_tokenizer()._backend
    return TextTokenizer(
        TokenizerParts(
            backend,
            eos_ids=(2,),
            chat_templates={"default": TEMPLATE},
            named_tokens={"eos_token": "<|im_end|>"},
        )
    )


class Server:
    """The application in front of an engine that answers as each case says."""

    def __init__(self) -> None:
        self._steps: Sequence[Step] = ()
        engine = replace(
            ENGINE, max_sequence_tokens=CONTEXT_TOKENS, max_input_tokens=CONTEXT_TOKENS - 1
        )
        limits = Serving(chunk_interval_ms=0)
        self.engine = _Service(
            lambda _: self._steps,
            frozen_tokenizer(),
            engine=engine,
            limits=limits,
            kv_cache_tokens=CONTEXT_TOKENS * 8,
            top_log_probs=2,
        )
        self.engine.model_name = MODEL
        self._app = Application({"model_name": MODEL}, limits, KEY).alone()
        self._app.begin(self.engine, build_routes(self.engine, {}))  # type: ignore[arg-type]

    async def send(self, case: Case) -> Exchange:
        """Send one request."""
        self._steps, seen = case.says, len(self.engine.requests)
        content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
        headers = {"authorization": f"Bearer {KEY}", **case.headers}
        scope: Scope = {
            **{"type": "http", "method": case.method, "path": case.path, "query_string": b""},
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        body = b"" if case.body is None else content
        received = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Message] = []

        async def receive() -> Message:
            if (message := next(received, None)) is not None:
                return message
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, *parts = sent
        return Exchange(
            start["status"],
            {name.decode(): value.decode() for name, value in start["headers"]},
            b"".join(part.get("body", b"") for part in parts).decode(),
            not parts[-1].get("more_body", False),
            self.engine.requests[seen:],
        )

    def prompt(self, request: EngineRequest) -> str:
        """Return the text of a request's prompt."""
        return self.engine.tokenizer.decode(request.input_ids, skip_special_tokens=False)


async def record() -> Mapping[str, str]:
    """Return the text of all exchanges, by the name of a file for each protocol."""
    server = Server()
    files: dict[str, str] = {}
    for protocol, cases in groupby(CASES, lambda case: case.protocol):
        parts = []
        for case in cases:
            exchange = await server.send(case)
            parts.append("\n".join(_lines(case, exchange, server)))
        files[f"exchanges/{protocol}.txt"] = "\n\n".join(parts) + "\n"
    return files


def _lines(case: Case, exchange: Exchange, server: Server) -> Iterator[str]:
    yield f"=== {case.name}"
    yield f"{case.method} {case.path}"
    yield from (f"{name}: {value}" for name, value in case.headers.items())
    if case.body is not None:
        body = repr(case.body) if isinstance(case.body, bytes) else json.dumps(case.body)
        yield body if len(body) <= _SHOWN_CHARACTERS else f"{body[:_SHOWN_CHARACTERS]} …"
    for request in exchange.requests:
        yield f"--- engine gets {json.dumps(server.prompt(request))}"
        yield from (f"{name}: {value}" for name, value in _asked(request))
    yield f"--- {exchange.status}"
    headers = exchange.headers
    yield from (f"{name}: {headers[name]}" for name in _SHOWN_HEADERS if name in headers)
    yield _normalized(_readable(exchange))
    if not exchange.complete:
        yield "--- connection closed"


def _asked(request: EngineRequest) -> Iterator[tuple[str, str]]:
    """Yield the fields of a request that are not the default."""
    plain = EngineRequest("", (), 0)
    for name in EngineRequest.__slots__:
        value, default = getattr(request, name), getattr(plain, name)
        if name not in ("request_id", "input_ids") and value != default and (value or default):
            yield name, _shown(value)


def _shown(value: Any) -> str:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if fields := getattr(value, "__dataclass_fields__", None):
        given = {name: getattr(value, name) for name in fields}
        if (given.get("seed") or 0) >= _RANDOM_SEEDS:
            given["seed"] = "RANDOM"
        return str({name: each for name, each in given.items() if each is not None})
    return str(value)


def _readable(exchange: Exchange) -> str:
    with suppress(ValueError):  # not JSON, or several lines of it
        text = json.dumps(json.loads(exchange.body), indent=1, ensure_ascii=False)
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), text)
    return exchange.body.rstrip("\n")


def _normalized(text: str) -> str:
    for pattern, replacement in _NORMALIZED:
        text = pattern.sub(replacement, text)
    return text
