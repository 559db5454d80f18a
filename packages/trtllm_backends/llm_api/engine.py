"""The LLM, its event loop and its requests, whose cumulative outputs become responses."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from trtllm_backends.llm_api.adapters import Adapter, AdapterFiles
from trtllm_backends.llm_api.library import Library, Workers, describe, ended_task
from trtllm_backends.llm_api.readings import EventLines, Source, cache_blocks, read_until_ended
from trtllm_backends.llm_api.request import (
    LlmRequest,
    LlmSettings,
    canary_request,
    sampling_params,
    wants_log_probs,
)
from trtllm_backends.token_model.request import ModelLimits
from trtllm_backends.token_model.responses import (
    Outputs,
    ResponseSender,
    RunningRequest,
    send_empty,
)
from trtllm_truss.errors import ArtifactError


class Generation(RunningRequest):
    """A running request of the LLM; for the event loop's thread only.

    Attributes:
        aborted: `abort` was called.
        ended: the final response was sent.
    """

    def __init__(
        self, request: LlmRequest, sender: ResponseSender, *, normalize_log_probs: bool = True
    ) -> None:
        super().__init__(request.generation, sender, normalize_log_probs=normalize_log_probs)
        self.llm_request = request
        self.aborted = False
        self.ended = False
        self._wants_log_probs = wants_log_probs(self.request)
        self._result: Any = None
        self._read = [0] * len(self.beams)
        self._complete = [False] * len(self.beams)

    def begin(self, result: Any) -> None:
        """Store the `RequestOutput` that `abort` needs."""
        self._result = result

    def take(self, result: Any, interval_s: float) -> None:
        """Read the new tokens of a `RequestOutput`, and send them or hold them back.

        The library changes the same object in each step, so no reference to it is kept. A stop word
        or the end token finishes the request, and the engine is then told to stop.

        Args:
            result: the cumulative output. A response of the library may repeat earlier tokens.
            interval_s: minimum time between responses.
        """
        if self.ended:
            return
        for index, output in enumerate(result.outputs[: len(self.beams)]):
            self._append(index, output)
        reason = result.outputs[0].finish_reason
        finished = bool(result.finished)
        if finished and reason in ("cancelled", "timeout") and not all(self._complete):
            self._end_early(reason)
        elif finished or all(self._complete):
            self._send(final=True)
            if not finished:
                self.abort()
        elif self.generated > self.sent and self.is_due(interval_s):
            self._send(final=False)

    def abort(self) -> None:
        """Abort the request; the engine sends a last response in a later step."""
        if not self.aborted and self._result is not None:
            self._result.abort()
        self.aborted = True

    def close(self) -> None:
        """Finish a request whose output has ended, unless finished already."""
        if self.aborted:
            self.cancel()
        else:
            self.fail("The engine ended its answer without finishing it.")

    def cancel(self) -> None:
        """Finish with an empty response, unless finished already."""
        if not self.ended:
            self.ended = True
            send_empty(self.request, self.sender)

    def fail(self, message: str, *, caller_at_fault: bool = False) -> None:
        """Finish with an error, unless finished already."""
        if not self.ended:
            self.ended = True
            self.sender.fail(message, caller_at_fault=caller_at_fault)

    def _append(self, index: int, output: Any) -> None:
        """Append tokens up to the end token (excluded) or a stop word's last token (included)."""
        read = self._read[index]
        tokens = output.token_ids[read:]  # empty if the library has truncated the list
        log_probs = output.logprobs[read:] if self._wants_log_probs and output.logprobs else ()
        for position, token in enumerate(tokens):
            if self._complete[index]:
                return
            if self._wants_log_probs and position >= len(log_probs):
                return  # they arrive later
            self._read[index] += 1
            log_prob, top = None, []
            if self._wants_log_probs:
                log_prob = _log_prob(log_probs[position], token)
                top = _top(log_probs[position], self.request.top_log_probs)
            self._complete[index] = self.add(int(token), log_prob, top, beam=index)

    def _end_early(self, reason: str) -> None:
        if self.aborted:
            self.cancel()
        else:
            self.fail(f"The engine dropped this request ({reason}).")

    def _send(self, *, final: bool) -> None:
        self.ended = final
        # `GenerationResultBase` of tensorrt_llm/executor/result.py has it from 1.2 on.
        self.send(final=final, cached_tokens=getattr(self._result, "cached_tokens", None))


def _top(entry: Any, count: int) -> list[tuple[int, float]]:
    """Return the likeliest tokens, best first, without a sampled token below them."""
    if not (count and isinstance(entry, dict)):
        return []
    found = [(int(token), _log_prob(entry, token)) for token in entry]
    return sorted(found, key=lambda pair: -pair[1])[:count]


def _log_prob(entry: Any, token: int) -> float:
    """Return the sampled token's value, from a dict by id or as a plain number (1.3)."""
    value: Any = entry[token] if isinstance(entry, dict) else entry
    return float(getattr(value, "logprob", value))


logger = logging.getLogger(__name__)

TICK_S = 0.25
"""Interval of checks of the workers, whose death ends the server within two seconds."""

_ABORT_LIMIT_S = 10.0
_QUEUED_ABORT_LIMIT_S = 1.0
"""Time limit for a request without a token: the library drops waiting requests without a response.

Sources: ``_handle_canceled_requests`` of ``tensorrt_llm/_torch/pyexecutor/py_executor.py``, near
1.0 and 1.2, and ``update_waiting_queue`` of ``executor_request_queue.py`` next to it, near 1.1.
"""
_SHUTDOWN_LIMIT_S = 5.0
_EXIT_LIMIT_S = 1.0
_START_TICK_S = 0.1
_START_GRACE_S = 5.0
_BLOCKED_LIMIT_S = 15.0
_BLOCKED_GRACE_S = 0.5
_GONE = "The engine is shutting down"
_ENGINES_FAULT = re.compile(
    r"cuda|cublas|cudnn|nccl|out of memory|illegal memory|device-side assert|error in forward", re.I
)
"""Texts of a `RequestError` that a failed step of the engine sends to each of its requests."""

_OF_ADAPTER = re.compile(r"failed to load lora adapter", re.I)
"""Prefix of a `RequestError`, since NVIDIA/TensorRT-LLM pull request 13517."""

# A response, or a check for cancellation, takes 0.1 to 0.2 ms through Triton's Python backend. Both
# are done less often the more requests are running.
_RESPONSE_S, _RESPONSE_FROM, _RESPONSE_MAXIMUM_S = 0.0005, 8, 0.05
_CHECK_REQUESTS, _CHECK_MAXIMUM = 6, 4


_OF_ONE_RESULT = (AssertionError, ValueError, TypeError, LookupError, AttributeError)
"""Errors of code in this process that reads one request's responses.

Source: ``tensorrt_llm/executor/result.py`` of 1.2.1: an assertion on the number of log
probabilities, a ValueError for an unknown finish reason (NVIDIA/TensorRT-LLM issue 10810).
"""


class EngineFailed(RuntimeError):
    """The LLM failed to start."""


class LlmEngine:
    """Owns the LLM, its event loop and their thread. All public methods are thread-safe.

    An error of one request is returned to that request. Any other error, a dead worker or silence
    counts as an engine failure: `on_death` is called once, and every request fails with an error.

    Args:
        on_death: stops the server; called on any thread, and must not block.
        on_blocks: called with the numbers of KV cache blocks by kind (possibly empty) several times
            a second, on a separate thread.
    """

    def __init__(
        self,
        library: Library,
        settings: LlmSettings,
        limits: ModelLimits,
        on_death: Callable[[], None],
        on_blocks: Callable[[Mapping[str, float]], None] = lambda blocks: None,
    ) -> None:
        self._library = library
        self._settings = settings
        self._limits = limits
        self._on_death = on_death
        self._on_blocks = on_blocks
        # Kept until the process exits: `LLM.__del__` waits forever for a dead worker.
        self._llm: Any = None
        self._adapter_files: dict[Adapter, AdapterFiles] = {}
        self._workers = Workers()
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._answered_at = time.monotonic()
        self._ticked_at = time.monotonic()
        self._ends_because: str | None = None
        self._has_ended = threading.Event()
        self._ending = threading.Lock()
        self._cleaning = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="llm-api", daemon=True)

    def start(self) -> None:
        """Load the LLM; block until it is ready.

        Raises:
            EngineFailed: the LLM did not start, its workers are gone, or an adapter cannot be
                applied.
        """
        self._thread.start()
        try:
            self._read_adapters()
            asyncio.run_coroutine_threadsafe(self._load(), self._loop).result()
        except EngineFailed:
            self._stop()
            raise
        except Exception as error:
            self._stop()
            raise EngineFailed(describe(error)) from error

    def submit(self, request: LlmRequest, sender: ResponseSender) -> None:
        """Start a request and return at once; responses go to `sender`."""
        self._loop.call_soon_threadsafe(self._begin, request, sender)

    def stop_request(self, request_id: str) -> None:
        self._loop.call_soon_threadsafe(
            self._cancel_where, lambda generation: generation.request.id == request_id
        )

    def close(self) -> bool:
        """Fail the remaining requests and stop the LLM with its workers, in bounded time.

        Returns:
            False if the LLM did not shut down; its exit handler may then wait forever.
        """
        if not self._thread.is_alive():
            return True
        ending = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        limit_s = _EXIT_LIMIT_S if self._has_ended.is_set() else _SHUTDOWN_LIMIT_S + _EXIT_LIMIT_S
        try:
            is_closed = ending.result(limit_s)
        except Exception as error:  # noqa: BLE001 - of any library
            logger.warning("TensorRT-LLM did not shut down: %s", describe(error))
            is_closed = False
        self._stop()
        return is_closed

    def _stop(self) -> None:
        self._workers.find()
        self._workers.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_EXIT_LIMIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _read_adapters(self) -> None:
        for adapter in self._settings.adapters.values():
            try:
                self._adapter_files[adapter] = AdapterFiles(adapter)
            except ArtifactError as problem:
                raise EngineFailed(f"lora_adapters.{adapter.name}: {problem.message}") from None

    async def _load(self) -> None:
        """Build the LLM in a thread: it blocks for minutes, or forever if a worker dies (1.2)."""
        started = time.monotonic()
        building = self._in_thread(self._build)
        while not building.done():
            await asyncio.wait([building], timeout=_START_TICK_S)
            self._workers.find()
            if dead := self._workers.dead():
                await asyncio.wait([building], timeout=_START_GRACE_S)
                if not building.done():
                    raise RuntimeError(f"worker process {', '.join(dead)} ended while starting")
        self._llm = building.result()
        self._workers.find()
        pids = self._workers.pids
        logger.info("loaded in %.1f s, workers %s", time.monotonic() - started, pids or "none")
        self._answered_at = time.monotonic()
        self._tick()
        self._look_for_cancelled()
        threading.Thread(target=self._watch, name="llm-api-watch", daemon=True).start()
        if self._reads_statistics or self._settings.kv_events is not None:
            threading.Thread(target=self._read, name="llm-api-readings", daemon=True).start()

    @property
    def _reads_statistics(self) -> bool:
        return bool(self._settings.llm_args.get("enable_iter_perf_stats"))

    def _read(self) -> None:
        """Read statistics and events until the engine has stopped; queues would fill otherwise."""
        sources = []
        with ExitStack() as stack:
            if self._reads_statistics:
                sources.append(Source("stats", lambda all_: self._on_blocks(cache_blocks(all_))))
            if (address := self._settings.kv_events) is not None:
                lines = stack.enter_context(closing(EventLines(address)))
                sources.append(Source("kv_cache_events", lines.send))
            read_until_ended(self._llm, self._loop, sources, self._has_ended)

    def _build(self) -> Any:
        settings = self._settings
        return self._library.build(
            str(settings.model_folder), str(settings.tokenizer_folder), settings.llm_args
        )

    def _in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run blocking work in a thread that does not keep the process from exiting."""
        result: asyncio.Future[Any] = self._loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def run() -> None:
            value, error = None, None
            try:
                value = work()
            except BaseException as caught:  # noqa: BLE001 - raised from the future
                error = caught
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=run, daemon=True).start()
        return result

    def _begin(self, request: LlmRequest, sender: ResponseSender) -> None:
        generation = Generation(
            request, sender, normalize_log_probs=self._settings.normalize_log_probs
        )
        if self._ends_because is not None:
            generation.fail(f"{_GONE}: {self._ends_because}")
            return
        if not self._tasks:
            self._answered_at = time.monotonic()
        task = self._loop.create_task(self._serve(generation))
        self._tasks[generation] = task
        task.add_done_callback(lambda _: self._tasks.pop(generation, None))

    async def _serve(self, generation: Generation) -> None:
        await self._check_adapter(generation)
        is_open = not (generation.aborted or generation.ended)
        result = self._start_generating(generation) if is_open else None
        if result is None:
            generation.close()
            return
        generation.begin(result)
        try:
            async for step in result:
                self._answered_at = time.monotonic()
                generation.take(step, self._interval_s)
            generation.close()
        except asyncio.CancelledError:  # it outlived its abort, or the engine is stopping
            generation.cancel()
        except _OF_ONE_RESULT as error:
            logger.exception("cannot read a response id=%s", generation.request.id)
            generation.fail(f"The engine's response cannot be read ({describe(error)}).")
            generation.abort()
            self._doubt()
        except Exception as error:  # noqa: BLE001 - classified there
            self._take_error(generation, error)

    async def _check_adapter(self, generation: Generation) -> None:
        """Fail a request whose adapter the library must not read; reading its files may be slow."""
        adapter = generation.llm_request.adapter
        if adapter is not None:
            try:
                await self._in_thread(self._adapter_files[adapter].check)
            except (ArtifactError, RuntimeError) as problem:  # RuntimeError: no thread available
                generation.fail(_unusable(adapter, str(problem)))

    def _start_generating(self, generation: Generation) -> Any:
        """Return the `RequestOutput`; None if the request was refused or the engine failed.

        An earlier failure of the engine is also raised here, at a request that is not at fault.
        """
        try:
            return self._generate(generation.llm_request)
        except (ValueError, TypeError) as error:
            generation.fail(str(error), caller_at_fault=True)
            self._doubt()
        except Exception as error:  # noqa: BLE001 - classified there
            self._take_error(generation, error)
        return None

    def _take_error(self, generation: Generation, error: Exception) -> None:
        """Return a request's own error to it; stop the server for any other error."""
        text = str(error) or type(error).__name__
        adapter = generation.llm_request.adapter
        if not isinstance(error, self._library.request_error) or _ENGINES_FAULT.search(text):
            self._end(f"{describe(error)}{self._suspects()}")
        elif adapter is not None and _OF_ADAPTER.match(text):
            generation.fail(_unusable(adapter, text))
        else:
            # After the first token, an error concerns the step, not the request.
            generation.fail(text, caller_at_fault=generation.generated == 0)
            self._doubt()

    def _suspects(self) -> str:
        """List the adapters that have not generated yet: the worker may have died of one."""
        waiting = (each.llm_request.adapter for each in [*self._tasks] if not each.generated)
        names = sorted({adapter.quoted for adapter in waiting if adapter is not None})
        return f"; requests for adapter {', '.join(names)} had not started" if names else ""

    def _generate(self, request: LlmRequest) -> Any:
        """Start a generation; the loop must be running in this thread.

        Returns:
            The `RequestOutput`. With beams it arrives once, at the end: each step would repeat all
                beams.
        """
        generation = request.generation
        lora = None
        if (adapter := request.adapter) is not None:
            lora = self._library.lora_request(adapter.name, adapter.number, adapter.path)
        return self._llm.generate_async(
            generation.prompt.tolist(),
            sampling_params=sampling_params(self._library, request),
            lora_request=lora,
            streaming=generation.sampling.beam_width == 1,
            # An argument in releases with otlp_traces_endpoint; other releases receive no headers.
            **({"trace_headers": request.trace_headers} if request.trace_headers else {}),
        )

    @property
    def _interval_s(self) -> float:
        running = len(self._tasks)
        return min(_RESPONSE_MAXIMUM_S, max(0, running - _RESPONSE_FROM) * _RESPONSE_S)

    def _cancel_where(self, chosen: Callable[[Generation], bool]) -> None:
        """Abort requests; each finishes with the engine's last response or at the time limit."""
        for generation, task in [*self._tasks.items()]:
            if not generation.aborted and chosen(generation):
                logger.info("stopped id=%s after=%d", generation.request.id, generation.generated)
                generation.abort()
                limit_s = _ABORT_LIMIT_S if generation.generated else _QUEUED_ABORT_LIMIT_S
                self._loop.call_later(limit_s, task.cancel)

    def _look_for_cancelled(self) -> None:
        self._cancel_where(lambda generation: generation.sender.is_cancelled())
        times = max(1.0, min(len(self._tasks) / _CHECK_REQUESTS, _CHECK_MAXIMUM))
        self._loop.call_later(times * self._settings.cancellation_check_s, self._look_for_cancelled)

    def _tick(self) -> None:
        if self._ends_because is not None:
            return
        self._loop.call_later(TICK_S, self._tick)
        self._ticked_at = time.monotonic()
        silent_s = self._ticked_at - self._answered_at
        if not self._is_healthy():
            self._end("TensorRT-LLM's health check failed.")
        elif self._tasks and silent_s > self._settings.hang_timeout_s:
            self._end(f"no token was generated for {silent_s:.0f} s.")
        elif not self._tasks and silent_s > self._settings.canary_interval_s:
            self._doubt()

    def _watch(self) -> None:
        """Check workers and loop from a thread: a failing library blocks the loop forever."""
        reason = None
        while reason is None and not self._has_ended.wait(TICK_S):
            blocked_s = time.monotonic() - self._ticked_at
            if dead := self._workers.dead():
                reason = f"worker process {', '.join(dead)} ended."
            elif ended := self._ended_task():
                reason = ended
            elif blocked_s > _BLOCKED_LIMIT_S:
                reason = f"TensorRT-LLM blocked the event loop for {blocked_s:.0f} s."
        if reason is None or not self._condemn(reason):
            return
        with suppress(RuntimeError):  # the loop is closed: the workers exited with the engine
            self._loop.call_soon_threadsafe(self._clean_up, reason)
            if not self._has_ended.wait(_BLOCKED_GRACE_S):
                self._clean_up(reason)

    def _is_healthy(self) -> bool:
        """Ask the library; in 1.2.1 its check only detects a shutdown, no dead or hung worker.

        Source: ``LLM._check_health`` of tensorrt_llm/llmapi/llm.py, 1.2.1.
        """
        check = getattr(self._llm, "_check_health", None)
        try:
            return check is None or bool(check())
        except Exception:
            logger.exception("TensorRT-LLM's health check failed")
            return False

    def _doubt(self) -> None:
        """Send a canary request, which any live engine completes."""
        if not any(isinstance(generation.sender, _Canary) for generation in self._tasks):
            self._begin(canary_request(self._limits.max_beam_width), _Canary(self._end))

    def _ended_task(self) -> str | None:
        if (error := ended_task(self._llm)) is None:
            return None
        return f"a worker's task ended{error and f' ({error})'}{self._suspects()}."

    def _end(self, reason: str) -> None:
        reason = self._ended_task() or reason  # a cause rather than its effects
        if self._condemn(reason):
            self._clean_up(reason)

    def _condemn(self, reason: str) -> bool:
        """Ask Triton to exit, before anything that may wait for it.

        Return False if already asked.
        """
        with self._ending:
            if self._ends_because is not None:
                return False
            self._ends_because = reason
        self._on_death()
        return True

    def _clean_up(self, reason: str) -> None:
        with self._cleaning:  # the loop may run it late
            if self._has_ended.is_set():
                return
            logger.error("the engine failed: %s", reason)
            self._workers.find()
            self._workers.kill()
            self._fail_all(f"{_GONE}: {reason}")
            self._has_ended.set()

    def _fail_all(self, message: str) -> None:
        for generation, task in [*self._tasks.items()]:
            generation.fail(message)
            self._loop.call_soon_threadsafe(task.cancel)

    async def _close(self) -> bool:
        has_failed = self._has_ended.is_set()
        self._ends_because = "it was stopped."
        self._has_ended.set()
        self._fail_all(f"{_GONE}.")
        self._workers.find()
        if has_failed:
            return False
        shutdown = self._in_thread(self._llm.shutdown)
        done, _ = await asyncio.wait([shutdown], timeout=_SHUTDOWN_LIMIT_S)
        if not done:
            logger.warning("TensorRT-LLM did not shut down in time; killing its workers")
        return bool(done)


class _Canary:
    """The sender of the engine's own requests, whose failure is the engine's."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure

    def send(self, outputs: Outputs, *, final: bool) -> None: ...

    def finish(self) -> None: ...

    def fail(self, message: str, *, caller_at_fault: bool) -> None:
        self._on_failure(message)

    def is_cancelled(self) -> bool:
        return False


def _unusable(adapter: Adapter, reason: str) -> str:
    return f"Adapter {adapter.quoted} cannot be used: {reason}"
