"""In-flight batching: one thread owns the engine and serves all requests.

A running request that turns tokens from the pipeline's handle into responses.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import openvino_genai

from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.guided import (
    HEARTBEAT_INTERVAL_S,
    Arrival,
    GuidedRequests,
    LongPrompts,
)
from trtllm_backends.openvino_genai.scoring import Score, Scoring, is_scored
from trtllm_backends.token_model.request import CACHED_TOKENS, TensorRequest
from trtllm_backends.token_model.responses import ResponseSender, RunningRequest, send_empty
from trtllm_truss.engines.cpu import GUIDE_CHECK, KV_BLOCK_TOKENS
from trtllm_truss.guides.validator import GuideValidator

_RUNNING = openvino_genai.GenerationFinishReason.NONE
_STATUS = openvino_genai.GenerationStatus


class Generation(RunningRequest):
    generating = True

    def __init__(
        self,
        request: TensorRequest,
        sender: ResponseSender,
        handle: openvino_genai.GenerationHandle,
        *,
        normalize_log_probs: bool = True,
        cached_tokens: int | None = None,
    ) -> None:
        super().__init__(request, sender, normalize_log_probs=normalize_log_probs)
        self._handle = handle
        self._cached_tokens = cached_tokens

    def collect(self, interval_s: float = 0.0) -> bool:
        """Collect the tokens of the last step; return True if the request has finished.

        Args:
            interval_s: minimum time between responses; tokens are held back meanwhile.
        """
        if not self._handle.can_read():
            return False  # still processing the prompt, or waiting for room in the KV cache
        results = self._handle.read()
        if not results:
            return self._end_without_result()
        if self.request.sampling.beam_width > 1:
            return self._end_beams(list(results.values()))
        (result,) = results.values()
        ended = self._append(0, result)
        if ended or self.is_due(interval_s):
            self.send(final=ended, cached_tokens=self._cached_tokens)
        if ended:
            self._handle.cancel()  # the pipeline does not know the stop words
        return ended

    def cancel(self) -> None:
        """Stop generating and finish with an empty response."""
        self._handle.cancel()
        send_empty(self.request, self.sender)

    def fail(self, message: str) -> None:
        """Finish with an error that is not the caller's fault."""
        self._handle.cancel()
        self.sender.fail(message, caller_at_fault=False)

    def _append(self, index: int, result: openvino_genai.GenerationOutput) -> bool:
        """Append tokens up to the end token (excluded) or a stop word's last token (included)."""
        log_probs = result.generated_log_probs
        for token, log_prob in zip(result.generated_ids, log_probs, strict=False):
            if self.add(token, log_prob, beam=index):
                return True
        return bool(result.finish_reason != _RUNNING)

    def _end_beams(self, results: list[openvino_genai.GenerationOutput]) -> bool:
        """Send all beams at once, each cut after its first stop word."""
        results.sort(key=lambda result: result.score, reverse=True)
        for index, result in enumerate(results):
            self._append(index, result)
        self.send(final=True, cached_tokens=self._cached_tokens)
        return True

    def _end_without_result(self) -> bool:
        status = self._handle.get_status()
        if status == _STATUS.RUNNING:
            return False
        self.fail(f"The engine dropped this request ({status.name}): its KV cache is full.")
        return True


class ScoredGeneration(Generation):
    """A generation whose tokens wait for their log probabilities.

    Meanwhile it sends an empty response from time to time, because the Truss treats silence as a
    hang.

    Attributes:
        generating: the pipeline is still generating.
    """

    def __init__(
        self,
        request: TensorRequest,
        sender: ResponseSender,
        handle: openvino_genai.GenerationHandle,
        score: Score,
        *,
        cached_tokens: int | None = None,
    ) -> None:
        super().__init__(request, sender, handle, cached_tokens=cached_tokens)
        self.generating = True
        self._score = score
        self._ended = False
        self._alive_at = time.monotonic()

    def wants_score(self, interval_s: float) -> bool:
        """Return True unless scoring more tokens together is better."""
        waiting = self._score.unread
        in_prompt = self._score.place < len(self.request.prompt)
        is_over = not self.generating or in_prompt or waiting >= _SCORED_TOGETHER
        return waiting > 0 and (is_over or self.is_due(interval_s))

    def score(self, tokens: int) -> None:
        """Compute the next scores and add their tokens."""
        place, length = self._score.place, len(self.request.prompt)
        for token, log_prob, top in self._score.advance(tokens):
            if place < length and self.prompt is not None:
                self.prompt.log_probs.append(log_prob)
                self.prompt.top.append(top)
            elif place >= length and not self._ended:
                self._ended = self.add(token, log_prob, top)
            place += 1

    def collect(self, interval_s: float = 0.0) -> bool:
        if self.generating and self._handle.can_read():
            results = self._handle.read()
            if not results:
                return self._end_without_result()
            (result,) = results.values()
            self._score.extend(result.generated_ids)
            self.generating = result.finish_reason == _RUNNING
        ended = self._ended or not (self.generating or self._score.unread)
        now = time.monotonic()
        if ended or (self.generated > self.sent and self.is_due(interval_s)):
            self._alive_at = now
            self.send(final=ended, cached_tokens=self._cached_tokens)
        elif self.request.streaming and now >= self._alive_at + HEARTBEAT_INTERVAL_S:
            self._alive_at = now
            send_empty(self.request, self.sender, final=False)
        if ended:
            self._handle.cancel()
        return ended


_SCORED_TOGETHER = 16

logger = logging.getLogger(__name__)

# The pipeline's step holds the GIL and uses all cores, so any other work costs throughput. On two
# cores a response takes 0.3 to 0.7 ms through Triton's Python backend and a check for cancellation
# 0.1 to 0.2 ms, while a token takes 12 ms. Both are therefore done less often the more requests are
# running. With few streams, each token is sent at once: a step with one stream takes longer than
# its responses. With more, tokens are collected for a time that grows with each stream, up to the
# last figure.
_STREAMS_AT_ONCE, _STREAMS_SLOWEST = 2, 14
# The interval of checks is multiplied by the number of requests divided by the first figure, but at
# most by the second.
_CHECK_REQUESTS, _CHECK_MAXIMUM = 6, 4
# Simultaneous requests reach an idle engine within milliseconds of each other. Its first step waits
# while they follow one another closely.
_GATHER_S, _GATHER_LIMIT_S = 0.002, 0.008


class _Wake(NamedTuple):
    pass


class _Stop(NamedTuple):
    request_id: str


class _Close(NamedTuple):
    pass


_Message: TypeAlias = Arrival | _Wake | _Stop | _Close


class Scheduler:
    """Admits requests in order of arrival while others run, and steps the engine.

    A request with a guide first waits in `GuidedRequests`. Only one of them starts at a time,
    because a step parses the guide of each. A request with a long prompt waits in `LongPrompts`
    until the prompt is processed.

    With the policy `guaranteed_no_evict`, a request waits until the KV cache has room for its
    maximum output in addition to the running requests; with `max_utilization`, only
    `max_batch_size` is a limit.

    Args:
        engine: used by this scheduler's thread only.
        on_death: called if the engine failed and could not be reloaded, before every request fails
            with an error.
    """

    def __init__(
        self, engine: GenAiEngine, settings: EngineSettings, on_death: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        check = GuideValidator(["-m", GUIDE_CHECK, str(settings.model_folder.resolve())])
        self._guided = GuidedRequests(engine, check, lambda: self._inbox.put(_Wake()))
        self._long_prompts = LongPrompts(engine)
        limit = engine.limits.context_length
        self._scoring = Scoring(engine.path, limit, lambda: self._inbox.put(_Wake()))
        self._waiting: deque[Arrival] = deque()
        self._running: list[Generation] = []
        self._closing = False
        self._next_check = 0.0
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: TensorRequest, sender: ResponseSender) -> None:
        """Queue a request and return at once; responses go to `sender`."""
        self._inbox.put(Arrival(request, sender))

    def stop_request(self, request_id: str) -> None:
        self._inbox.put(_Stop(request_id))

    def close(self) -> None:
        """Fail the remaining requests and stop the thread after its current step."""
        self._inbox.put(_Close())
        self._thread.join()
        self._guided.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._read_inbox()
                self._drop_cancelled()
                for arrival in self._guided.advance(
                    may_compile=not self._guide_comes, others_run=bool(self._running)
                ):
                    self._enqueue(arrival)
                for arrival in self._scoring.advance():
                    self._enqueue(arrival)
                self._admit()
                self._read_ahead()
                self._step()
            self._fail_all("The engine is shutting down.")
        except Exception:
            self._on_death()  # first: log and responses wait for Triton
            logger.exception("the engine failed and cannot be loaded again")
            self._fail_all("The engine failed and cannot be loaded again.")

    def _read_inbox(self) -> None:
        """Handle all messages; wait for one if there is no other work."""
        if not (self._running or self._long_prompts.are_waiting or self._next_admitted()):
            self._engine.rest()
            self._scoring.rest()
            are_waiting = self._guided.are_waiting or self._scoring.are_waiting
            timeout_s = HEARTBEAT_INTERVAL_S if are_waiting else self._scoring.idle_s()
            with suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=timeout_s))
                self._gather()
        while not self._inbox.empty():
            self._handle(self._inbox.get())

    def _gather(self) -> None:
        """Wait for simultaneous requests, which a step that starts without them would delay."""
        deadline = time.monotonic() + _GATHER_LIMIT_S
        with suppress(queue.Empty):
            while not self._closing and time.monotonic() < deadline:
                self._handle(self._inbox.get(timeout=_GATHER_S))

    def _handle(self, message: _Message) -> None:
        match message:
            case Arrival() as arrival:
                if arrival.request.guide is None:
                    self._enqueue(arrival)
                else:
                    self._guided.take(arrival)
            case _Wake():
                pass
            case _Stop(request_id):
                self._cancel_where(lambda one: one.request.id == request_id)
            case _Close():
                self._closing = True

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._cancel_where(lambda one: one.sender.is_cancelled())
        times = max(1.0, min(len(self._running) / _CHECK_REQUESTS, _CHECK_MAXIMUM))
        self._next_check = now + times * self._settings.cancellation_check_s

    def _cancel_where(self, chosen: Callable[[Arrival | Generation], bool]) -> None:
        for generation in [g for g in self._running if chosen(g)]:
            self._running.remove(generation)
            _log_stopped(generation.request, generation.generated)
            generation.cancel()
        arrivals = self._guided.remove(chosen)
        arrivals += self._long_prompts.remove(chosen)
        arrivals += self._scoring.remove(chosen)
        arrivals += [arrival for arrival in self._waiting if chosen(arrival)]
        for arrival in arrivals:
            with suppress(ValueError):
                self._waiting.remove(arrival)
            _log_stopped(arrival.request, 0)
            send_empty(arrival.request, arrival.sender)

    def _enqueue(self, arrival: Arrival) -> None:
        if self._scoring.takes(arrival.request):
            self._scoring.add(arrival)
        elif self._long_prompts.takes(arrival.request):
            self._long_prompts.add(arrival)
        else:
            self._waiting.append(arrival)

    def _read_ahead(self) -> None:
        arrival = self._long_prompts.advance(
            others_run=bool(self._running), fits=self._fits, measured=self._measured
        )
        if arrival is not None:
            self._waiting.append(arrival)

    def _admit(self) -> None:
        while len(self._running) < self._settings.max_batch_size:
            arrival = self._next_admitted()
            if arrival is None or not self._fits(arrival.request):
                return
            self._waiting.remove(arrival)
            # A long prompt was processed; it was measured before, or not at all.
            was_read = self._long_prompts.takes(arrival.request)
            self._begin(arrival if was_read else self._measured(arrival))

    def _measured(self, arrival: Arrival) -> Arrival:
        """Measure how much of a prompt is cached, if requested or useful and nothing is running."""
        is_idle = not (self._running or self._long_prompts.is_reading)
        is_wanted = CACHED_TOKENS in arrival.request.outputs
        if not (is_wanted or self._long_prompts.takes(arrival.request)) or not is_idle:
            return arrival
        try:
            found = self._engine.cached_tokens(arrival.request.prompt)
        except RuntimeError:  # the next step fails too
            logger.exception("cannot measure the prefix cache")
            return arrival
        return arrival._replace(cached_tokens=found)

    def _next_admitted(self) -> Arrival | None:
        """Return the first waiting request; one without a guide while a guide is being parsed."""
        must_wait = self._guided.is_compiling or self._begins_with_guide
        free = (a for a in self._waiting if a.request.guide is None or not must_wait)
        running = [generation.request for generation in self._running]
        return next(
            (a for a in free if not is_scored(a.request) or self._scoring.fits(a.request, running)),
            None,
        )

    @property
    def _begins_with_guide(self) -> bool:
        return any(g.request.guide is not None and not g.generated for g in self._running)

    @property
    def _guide_comes(self) -> bool:
        return self._begins_with_guide or any(a.request.guide is not None for a in self._waiting)

    def _begin(self, arrival: Arrival) -> None:
        request, sender, cached_tokens = arrival
        if self._scoring.takes(request):  # the copy was dropped while it waited for its guide
            self._scoring.add(arrival)
            return
        try:
            handle = self._engine.add(request)
        except RuntimeError as error:
            sender.fail(f"The engine refused the request: {error}", caller_at_fault=True)
            return
        if is_scored(request):
            score = self._scoring.begin(request)
            self._running.append(
                ScoredGeneration(request, sender, handle, score, cached_tokens=cached_tokens)
            )
            return
        normalize = self._settings.normalize_log_probs
        self._running.append(
            Generation(
                request,
                sender,
                handle,
                normalize_log_probs=normalize,
                cached_tokens=cached_tokens,
            )
        )

    def _fits(self, request: TensorRequest) -> bool:
        capacity = self._engine.limits.kv_cache_tokens
        held_by = [generation.request for generation in self._running]
        if self._long_prompts.current is not None:
            held_by.append(self._long_prompts.current)
        if capacity is None or self._settings.evict or not held_by:
            return True
        held = sum(map(self._engine.kv_blocks, held_by))
        return held + self._engine.kv_blocks(request) <= capacity // KV_BLOCK_TOKENS

    def _step(self) -> None:
        if not (self._running or self._long_prompts.is_reading):
            return
        generating = sum(g.generating for g in self._running) + self._long_prompts.is_reading
        streams = sum(g.request.streaming for g in self._running)
        interval_s = response_interval_s(streams, self._settings.response_interval_s)
        try:
            if generating:
                self._engine.step(accompanied=generating < 2 and self._must_repeat)
        except (RuntimeError, MemoryError) as error:
            logger.exception("a step failed; loading the model again")
            self._fail_running(f"The engine failed: {error}")
            self._engine.reload()
            self._guided.engine_is_new()
            return
        self._compute_score(interval_s)
        self._running = [g for g in self._running if not g.collect(interval_s)]

    @property
    def _must_repeat(self) -> bool:
        """Return True if output or a prompt must not depend on the number of running requests."""
        return self._long_prompts.is_reading or any(
            g.generating and g.request.is_repeatable for g in self._running
        )

    def _compute_score(self, interval_s: float) -> None:
        """Compute a part of the score that has been awaited the longest."""
        scored = [g for g in self._running if isinstance(g, ScoredGeneration)]
        wanting = [g for g in scored if g.wants_score(interval_s)]
        others_run = any(g.generating for g in self._running if g not in wanting)
        if not (wanting and self._scoring.is_due(others_run=others_run)):
            return
        chosen = wanting[0]
        self._running.remove(chosen)
        try:
            self._scoring.part(chosen.score)
        except (RuntimeError, MemoryError) as error:
            logger.exception("a score failed")
            chosen.fail(f"The log probabilities cannot be computed: {error}")
        else:
            self._running.append(chosen)

    def _fail_running(self, message: str) -> None:
        for generation in self._running:
            generation.fail(message)
        self._running.clear()
        for arrival in self._long_prompts.remove(lambda _: True):
            arrival.sender.fail(message, caller_at_fault=False)

    def _fail_all(self, message: str) -> None:
        self._fail_running(message)
        while not self._inbox.empty():
            message_in = self._inbox.get()
            if isinstance(message_in, Arrival):
                self._waiting.append(message_in)
        held = self._guided.remove(lambda _: True) + self._scoring.remove(lambda _: True)
        for arrival in (*held, *self._waiting):
            arrival.sender.fail(message, caller_at_fault=False)
        self._waiting.clear()


def response_interval_s(streams: int, longest_s: float) -> float:
    """Return the minimum time between two responses to each of the given number of streams."""
    share = (streams - _STREAMS_AT_ONCE) / (_STREAMS_SLOWEST - _STREAMS_AT_ONCE)
    return longest_s * max(0.0, min(share, 1.0))


def _log_stopped(request: TensorRequest, generated: int) -> None:
    logger.info("stopped id=%s after=%d", request.id, generated)
