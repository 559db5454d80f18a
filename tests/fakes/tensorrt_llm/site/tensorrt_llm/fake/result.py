"""`RequestOutput`: one object, changed by each response."""

import asyncio
import collections
import contextlib
import json
import queue
from typing import Any, NamedTuple

from tensorrt_llm.fake.versions import RELEASE

_REPORTS_SINCE = (1, 2)
"""`GenerationResultBase` in executor/result.py of 1.0.0 and 1.1.0 lacks `cached_tokens`."""


class Response(NamedTuple):
    """A response of the worker; `tokens` are all of a beam's for beams, else the new ones."""

    request_id: int
    index: int = 0
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    final: bool = False
    replaces: bool = False
    error: Any = None
    cached_tokens: int = 0


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None


class CompletionOutput:
    def __init__(self, index):
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.cumulative_logprob = None
        self.logprobs: list[Any] = []
        self.finish_reason = None
        self.stop_reason = None
        self._last_token_ids_len = 0

    @property
    def length(self):
        return len(self.token_ids)

    @property
    def token_ids_diff(self):
        return self.token_ids[self._last_token_ids_len :]


class AsyncQueue:
    """A queue whose waiters are woken through the loop of another one, see `wake_all`."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self._items = collections.deque()
        self._event = asyncio.Event()

    def put(self, item):
        self._items.append(item)

    async def get(self):
        while not self._items:
            self._event.clear()
            if not self._items:
                await self._event.wait()
        return self._items.popleft()

    @staticmethod
    def wake_all(queues):
        """Wake the waiters of a batch on the loop of its first queue, if that still runs.

        Source: `dispatch_result_task` of executor/proxy.py, near 1.2, which only logs an
        `EventLoopShutdownError`.
        """
        with contextlib.suppress(RuntimeError):
            loop = queues[0].loop
            loop.call_soon_threadsafe(lambda: [each._event.set() for each in queues])


class Readings(NamedTuple):
    """Statistics of steps or events of the KV cache as JSON, from the worker."""

    name: str
    entries: list[str]


class IterationResult:
    """Readings before pull request 9980: a queue of the loop on which requests begin.

    It has no limit, and nothing but its iteration takes from it. Source: `IterationResult` of
    executor/result.py, `_SyncQueue` of llmapi/utils.py, near 1.2.
    """

    def __init__(self):
        self.entries = collections.deque()
        self.timeout = 2

    def get_results(self):
        if self.entries:
            raise TypeError("the JSON object must be str, bytes or bytearray, not NoneType")
        return []

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.timeout:
            raise NotImplementedError("the caller waits on its event loop")
        if not self.entries:
            raise asyncio.QueueEmpty
        return json.loads(self.entries.popleft())


class RequestOutput:
    def __init__(self, request_id, prompt, params, abort):
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(index) for index in range(params.best_of)]
        self.finished = False
        self._params = params
        self._open = self._coming = params.best_of
        self._abort = abort
        self._queue = queue.Queue()
        try:
            self.aqueue = AsyncQueue()
        except RuntimeError:  # no loop runs in this thread
            self.aqueue = None

    def is_last(self, response):
        """Count a response that arrives; return True for the last one."""
        self._coming -= response.final
        return self._coming == 0 or response.finish_reason == "cancelled"

    def put(self, response):
        (self.aqueue or self._queue).put(response)

    def abort(self):
        self._abort(self.request_id)

    def result(self, timeout=None):
        while not self.finished:
            self._handle(self._queue.get(timeout=timeout))
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finished:
            raise StopAsyncIteration
        assert self.aqueue is not None, "The asyncio event loop was not present at initialization."
        self._handle(await self.aqueue.get())
        return self

    def __await__(self):
        return self._last().__await__()

    async def _last(self):
        async for _ in self:
            pass
        return self

    def _handle(self, response):
        if response.error is not None:
            self.finished = True
            raise response.error
        if RELEASE >= _REPORTS_SINCE:
            self.cached_tokens = response.cached_tokens
        output = self.outputs[response.index]
        output._last_token_ids_len = 0 if response.replaces else len(output.token_ids)
        if response.replaces:
            output.token_ids, output.logprobs = [], []
        output.token_ids += response.tokens
        if response.log_probs is not None:
            pairs = zip(response.tokens, response.log_probs, strict=True)
            output.logprobs += [self._entry(token, value) for token, value in pairs]
            output.cumulative_logprob = sum(
                entry[token].logprob
                for token, entry in zip(output.token_ids, output.logprobs, strict=True)
            )
        if response.finish_reason is not None:
            self._finish(output, response.finish_reason)
        if response.final:
            self._open -= 1
            self.finished = self._open == 0 or response.finish_reason == "cancelled"

    def _entry(self, token, value):
        """Return the sampled token and as many others as asked for; theirs are invented."""
        others = range(1, self._params.logprobs or 1)
        entry = {token + 2 * rank: Logprob(value - rank, rank + 1) for rank in others}
        return {**entry, token: Logprob(value, 1)}

    def _finish(self, output, reason):
        output.finish_reason = reason
        stops = self._params.stop_token_ids or []
        if reason == "stop" and output.token_ids and output.token_ids[-1] in stops:
            output.stop_reason = output.token_ids[-1]
            if not self._params.include_stop_str_in_output:
                output.token_ids.pop()
                del output.logprobs[len(output.token_ids) :]
