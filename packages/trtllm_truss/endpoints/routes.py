"""The endpoints of Truss's routes, the selection of their protocols, and in-process `predict`.

`truss.load(DIR).predict({…})` in a script or notebook is synchronous and may run inside an event
loop, so its requests run in a loop on a separate thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from starlette.requests import Request

from trtllm_truss.endpoints.application import INVOCATIONS
from trtllm_truss.endpoints.encoded_body import Turns
from trtllm_truss.endpoints.endpoint import REQUEST_ID_HEADER, Endpoint
from trtllm_truss.local_requests import PREDICT
from trtllm_truss.protocols.base import MAX_MODEL_CHARACTERS, ApiAdapter, CountAdapter, Defaults
from trtllm_truss.protocols.lmi import LmiAdapter
from trtllm_truss.protocols.messages.adapter import MessagesAdapter
from trtllm_truss.protocols.openai.adapter import (
    DetokenizeAdapter,
    EmbeddingsAdapter,
    OpenAIAdapter,
    TokenizeAdapter,
    usable_defaults,
)
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.protocols.predict import PredictAdapter, parse_predict
from trtllm_truss.protocols.responses.adapter import ResponsesAdapter
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import AnswerItem, TextDelta
from trtllm_truss.serving.service import Service
from trtllm_truss.tool_calls.detection import UNKNOWN_CALLS, describe_formats
from trtllm_truss.tool_calls.parser import choose_formats

logger = logging.getLogger(__name__)

ANTHROPIC_ID_HEADERS = (REQUEST_ID_HEADER, "Request-Id")
"""Anthropic's client reads the second one."""


def build_routes(service: Service, defaults: Defaults) -> Mapping[str, Endpoint]:
    """Build the endpoints of a running service, by the paths of their routes.

    `:predict` accepts bodies of predict, LMI or TGI, and `/invocations` those of LMI, TGI or
    OpenAI.

    Args:
        defaults: `model_metadata.generation`, validated; overrides the model's
            `generation_config.json` in OpenAI's and Anthropic's APIs.
    """
    formats = _formats(service)
    predict = PredictAdapter(defaults, formats)
    lmi, tgi = LmiAdapter(defaults), LmiAdapter(defaults, tgi=True)
    pipeline = service.pipeline
    name = service.model_name[:MAX_MODEL_CHARACTERS]
    recommended = {"model": name, **usable_defaults(pipeline.recommended), **defaults}
    chat = OpenAIAdapter(partial(parse_chat, formats=formats), recommended, "chat_completions")
    context_tokens = pipeline.engine.max_sequence_tokens
    parse = partial(parse_completion, context_tokens=context_tokens)
    completion = OpenAIAdapter(parse, recommended, "completions")
    invoked = {
        "messages": replace(chat, parse=partial(parse_chat, formats=formats, top_is_chosen=True)),
        "prompt": replace(completion, parse=partial(parse, top_is_chosen=True)),
    }

    def choose(request: Request, body: Mapping[str, Any]) -> ApiAdapter:
        invokes = request.scope["path"] == INVOCATIONS
        if invokes:
            for field, adapter in invoked.items():
                if field in body:
                    return adapter
        if body and not (invokes or is_lmi(body)):
            return predict
        if is_tgi_client(request.headers.get("user-agent", "")):
            return tgi
        return lmi if invokes or body else predict

    responses = ResponsesAdapter(recommended, formats)
    input_tokens = CountAdapter(responses, "input_tokens", kind={"object": "response.input_tokens"})
    messages = MessagesAdapter(recommended, formats)
    count_tokens = CountAdapter(messages, "count_tokens", filling={"max_tokens": INT32_MAX})
    endpoint = partial(Endpoint, service, Turns())
    anthropics = partial(endpoint, id_headers=ANTHROPIC_ID_HEADERS)
    chosen = endpoint(predict, choose)
    return {
        PREDICT: chosen,
        f"{PREDICT}_binary": chosen,
        INVOCATIONS: chosen,
        "/v1/chat/completions": endpoint(chat),
        "/v1/completions": endpoint(completion),
        "/v1/responses": endpoint(responses),
        "/v1/responses/input_tokens": endpoint(input_tokens),
        "/v1/messages": anthropics(messages),
        "/v1/messages/count_tokens": anthropics(count_tokens),
        "/v1/embeddings": endpoint(EmbeddingsAdapter()),
        "/tokenize": endpoint(TokenizeAdapter(chat, completion, context_tokens)),
        "/detokenize": endpoint(DetokenizeAdapter(completion)),
    }


def _formats(service: Service) -> ModelFormats:
    limits, tokenizer = service.limits, service.pipeline.tokenizer
    chosen = choose_formats(
        limits.tool_parser, limits.reasoning_parser, tokenizer.templates, tokenizer.added_tokens
    )
    is_unknown = chosen[0] is None and limits.tool_parser == "auto"
    if tokenizer.templates is not None:
        logger.info("%s", tokenizer.templates.shape.sentence)
    logger.info("%s", describe_formats(*chosen))
    if is_unknown:
        logger.warning("%s", UNKNOWN_CALLS)
    return ModelFormats(*chosen, warns=is_unknown)


def is_lmi(body: Mapping[str, Any]) -> bool:
    """Distinguish LMI bodies from the route's other protocols."""
    return "inputs" in body


def is_tgi_client(user_agent: str) -> bool:
    """Recognize huggingface_hub, which expects TGI's shapes, by its user agent."""
    return "hf_hub/" in user_agent


_PROTOCOL = "predict"
_STOP_LIMIT_S = 60.0


class InProcessPredict:
    """Answers predict bodies with text. Thread-safe.

    The service stops with this object or the process: Truss creates a model per prediction and
    drops it without notice.

    Args:
        defaults: values of missing request fields.
    """

    def __init__(self, service: Service, defaults: Mapping[str, Any]) -> None:
        self._generator = service.pipeline.generator
        self._defaults = defaults
        self._formats = _formats(service)
        self._loop, end_loop = _new_loop()
        weakref.finalize(self, _end, threading.get_ident(), service.stop, end_loop)

    def __call__(self, body: Mapping[str, Any]) -> str | Generator[str, None, None]:
        """Generate the text of a body.

        Returns:
            A generator of text deltas; closing it cancels the request in the engine. With
            `"stream": false`, the whole text.

        Raises:
            InvalidRequest: a field is missing, unknown, of the wrong type or out of range.
            TrussError: the engine rejected the request, failed or exited. A generator raises it
                when it is read.
        """
        request, stream = parse_predict(body, self._defaults, self._formats)
        pieces = self._pieces(self._generator.generate([request], _PROTOCOL))
        return pieces if stream else "".join(pieces)

    def _pieces(self, answer: AsyncGenerator[list[AnswerItem], None]) -> Generator[str, None, None]:
        texts: SimpleQueue[str | None] = SimpleQueue()
        reading = asyncio.run_coroutine_threadsafe(_read(answer, texts.put), self._loop)
        reading.add_done_callback(lambda _: texts.put(None))
        try:
            while (text := texts.get()) is not None:
                yield text
            reading.result()
        finally:
            reading.cancel()
            # Break the cycle of error, traceback and frame, which would keep the engine alive.
            del reading


async def _read(answer: AsyncGenerator[list[AnswerItem], None], put: Callable[[str], None]) -> None:
    async with aclosing(answer) as items:
        async for together in items:
            for item in together:
                if isinstance(item, TextDelta):
                    put(item.text)


def _new_loop() -> tuple[asyncio.AbstractEventLoop, Callable[[], object]]:
    """Start an event loop on a thread; return it and a function that stops it."""
    started: Future[tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = Future()

    async def stay() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        started.set_result((loop, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()

    def run() -> None:
        try:
            asyncio.run(stay())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            started.set_exception(error)

    threading.Thread(target=run, name="in-process predict", daemon=True).start()
    return started.result()


def _end(owner: int, *steps: Callable[[], object]) -> None:
    """Run the steps on a separate thread, since they join the service's threads.

    The garbage collector may find a dropped object on any of those threads. The creating thread and
    the main thread, which calls this at exit, wait; but only for a limited time, because the
    collection may run within a lock that the steps need, such as the log's.
    """

    def run() -> None:
        for step in steps:
            step()

    ending = threading.Thread(target=run, name="in-process end")
    try:
        ending.start()
    except RuntimeError:  # Python 3.12 starts no threads while the process exits
        run()
        return
    if threading.get_ident() in (owner, threading.main_thread().ident):
        ending.join(_STOP_LIMIT_S)
