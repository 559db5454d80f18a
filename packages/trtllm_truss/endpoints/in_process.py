"""In-process `predict`: `truss.load(DIR).predict({…})` in a script or notebook.

The caller is synchronous and may run inside an event loop, so requests run in a loop on a separate
thread.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any

from trtllm_truss.protocols.predict import parse_predict
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import AnswerItem, TextDelta
from trtllm_truss.serving.service import Service

_PROTOCOL = "predict"


class InProcessPredict:
    """Answers predict bodies with text. Thread-safe.

    The service is stopped with this object or the process: Truss creates a model per prediction
    and drops it without a notification.

    Args:
        service: the running service.
        defaults: values of missing request fields.
    """

    def __init__(self, service: Service, defaults: Mapping[str, Any]) -> None:
        self._service = service
        self._defaults = defaults
        self._formats = ModelFormats.choose(service.limits, service.chat_template)
        self._loop, end_loop = _new_loop()
        weakref.finalize(self, _end, service.stop, end_loop)

    def __call__(self, body: Mapping[str, Any]) -> str | Generator[str, None, None]:
        """Generate the text of a body.

        Returns:
            A generator of text deltas; closing it cancels the request in the engine. The whole text
            with `"stream": false`.

        Raises:
            InvalidRequest: a field is missing, unknown, of the wrong type or out of range.
            TrussError: the engine rejected the request, failed or exited. A generator raises it
                when read.
        """
        request, stream = parse_predict(body, self._defaults, self._formats)
        pieces = self._pieces(self._service.generator.generate([request], _PROTOCOL))
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
    """Start an event loop on a thread; return it and a function that ends it."""
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


def _end(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()
