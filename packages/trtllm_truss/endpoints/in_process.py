"""`predict` for a caller in this process: `truss.load(DIR).predict({…})`, a script, a notebook.

Such a caller wants text, not a response, and it awaits nothing; it may even be inside an event loop
of its own that must not be blocked for. Requests therefore run in a loop on a thread of their own.
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

from trtllm_truss.protocols.predict.body import parse_predict
from trtllm_truss.requests import AnswerItem, TextDelta
from trtllm_truss.serving.service import Service

_PROTOCOL = "predict"


class InProcessPredict:
    """Answers predict bodies with text. May be called from any thread.

    The engine ends with this object, or with the process: Truss makes a model for each prediction,
    drops it afterwards, and has no way of saying so.
    """

    def __init__(self, service: Service, defaults: Mapping[str, Any]) -> None:
        """Binds the service that answers, and ends with it.

        Args:
            service: the running engine.
            defaults: request fields that hold where a body leaves them out.
        """
        self._service = service
        self._defaults = defaults
        self._loop, end_loop = _new_loop()
        weakref.finalize(self, _end, service.stop, end_loop)

    def __call__(self, body: Mapping[str, Any]) -> str | Generator[str, None, None]:
        """The text that a body asks for.

        Returns:
            A generator of its pieces, as they come; closing it ends the request in the engine.
            With `"stream": false` the whole text.

        Raises:
            InvalidRequest: a field is missing, unknown, of the wrong type or out of range.
            TrussError: the engine refused, failed or went away. A generator raises it when it is
                read, and never ends as if the text were whole.
        """
        request, stream = parse_predict(body, self._defaults)
        pieces = self._pieces(self._service.generator.generate([request], _PROTOCOL))
        return pieces if stream else "".join(pieces)

    def _pieces(self, answer: AsyncGenerator[AnswerItem, None]) -> Generator[str, None, None]:
        texts: SimpleQueue[str | None] = SimpleQueue()
        reading = asyncio.run_coroutine_threadsafe(_read(answer, texts.put), self._loop)
        reading.add_done_callback(lambda _: texts.put(None))
        try:
            while (text := texts.get()) is not None:
                yield text
            reading.result()
        finally:
            reading.cancel()
            # Its error's traceback has this frame: a circle, and the engine would outlive it.
            del reading


async def _read(answer: AsyncGenerator[AnswerItem, None], put: Callable[[str], None]) -> None:
    async with aclosing(answer) as items:
        async for item in items:
            if isinstance(item, TextDelta):
                put(item.text)


def _new_loop() -> tuple[asyncio.AbstractEventLoop, Callable[[], object]]:
    """A loop that runs on a thread of its own, and what ends it."""
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
