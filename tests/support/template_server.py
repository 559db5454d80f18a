"""The public routes over one chat template, with a scripted engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import ENGINE, FakeEngine
from tests.support.smollm2 import smollm2_tokenizer
from tokenizers import AddedToken, Tokenizer

from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts

_CONTEXT = 1 << 16
_NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


class Answer(NamedTuple):
    """One response.

    Attributes:
        prompt: the text that the engine got, or `/tokenize` returned; empty for an error.
        body: the parsed JSON.
    """

    status: int
    prompt: str
    body: Any

    @property
    def message(self) -> str:
        """The text of an error."""
        found = self.body["error"]
        return str(found["message"] if isinstance(found, Mapping) else found)


class TemplateServer:
    """A server of SmolLM2's tokenizer with other chat templates.

    Args:
        templates: by name; a text is `default`.
        special: further special tokens.
        steps: texts that the engine generates.
    """

    def __init__(
        self,
        templates: str | Mapping[str, str],
        special: Sequence[str] = (),
        steps: Sequence[str] = ("Hi",),
    ) -> None:
        backend = smollm2_tokenizer()._backend
        if special:
            backend = Tokenizer.from_str(backend.to_str())
            backend.add_special_tokens([AddedToken(each, normalized=False) for each in special])
        sources = {"default": templates} if isinstance(templates, str) else templates
        self.tokenizer = TextTokenizer(
            TokenizerParts(backend, eos_ids=(2,), chat_templates=sources, named_tokens=_NAMED)
        )
        big = replace(ENGINE, max_sequence_tokens=_CONTEXT, max_input_tokens=_CONTEXT - 1)
        self.engine = FakeEngine(
            lambda request: steps, self.tokenizer, engine=big, kv_cache_tokens=_CONTEXT
        )
        self._routes = build_routes(self.engine, {})  # type: ignore[arg-type]
        self._app = Starlette(
            routes=[
                Route(path, endpoint.__call__, methods=["POST"])
                for path, endpoint in self._routes.items()
            ]
        )

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a body."""
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.post(path, json=body)
        found = response.json()
        if response.status_code != 200:
            return Answer(response.status_code, "", found)
        ids = found["tokens"] if path == "/tokenize" else self.engine.requests[-1].input_ids
        return Answer(200, self.tokenizer.decode(ids, skip_special_tokens=False), found)
