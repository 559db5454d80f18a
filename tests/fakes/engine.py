"""A fake engine behind the real request path; its answers follow a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import TrussError
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.generation import Generator
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.inference.pipeline import RequestPipeline
from trtllm_truss.inference.preprocessing import Capabilities, Preprocessor
from trtllm_truss.observability.metrics import Metrics
from trtllm_truss.observability.tracing import Tracing
from trtllm_truss.releases import CacheReport
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest

Step = str | list[int] | float | TrussError
"""A text or ids, sent at once; seconds of silence; or the error that ends the answer."""

ENGINE = CpuEngine(
    max_sequence_tokens=100,
    max_input_tokens=99,
    max_batch_size=4,
    max_beam_width=2,
    folder=Path("engine"),
    tokenizer_folder=Path("engine"),
)


class FakeEngine:
    """Plays the scripted steps of every request.

    Args:
        script: returns the steps of a request.
        tokenizer: encodes texts.
        places: concurrent requests.
        limits: the operator's settings; the default has no chunk interval.
        engine: the described engine; the default one accepts no guides.
        top_log_probs: alternatives per token that it reports, also of a prompt, if asked.
        kv_cache_tokens: capacity of its KV cache.
        cached: what it tells of each request's prompt that asks for a report.
        cache_report: how it tells.
        logits_vocabulary: size of the vocabulary of an engine that returns logits.
        clock: of the heartbeat.

    Attributes:
        stopping: resolves once the engine has stopped the requests that are abandoned; None if it
            does so at once.
    """

    def __init__(
        self,
        script: Callable[[EngineRequest], Sequence[Step]],
        tokenizer: TextTokenizer,
        places: int = 8,
        limits: Serving | None = None,
        engine: Engine = ENGINE,
        top_log_probs: int = 0,
        kv_cache_tokens: int = 80,
        cached: int | None = None,
        cache_report: CacheReport | None = None,
        logits_vocabulary: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stopping: asyncio.Future[None] | None = None
        self.requests: list[EngineRequest] = []
        self.ended: list[str] = []
        self._script = script
        self._tokenizer = self.tokenizer = tokenizer
        self._cached = cached
        self.limits = limits or Serving(chunk_interval_ms=0)
        self.admission = Admission(places, None, self.limits)
        self.metrics = Metrics(engine_up=lambda: True)
        self.tracing: Tracing | None = None
        self.model_name = "smollm2"
        self.heartbeat = EngineHeartbeat(clock)
        capabilities = Capabilities(
            kv_cache_tokens=kv_cache_tokens,
            top_log_probs=top_log_probs,
            prompt_log_probs=top_log_probs > 0,
            logits_vocabulary=logits_vocabulary,
        )
        if engine is not ENGINE:
            capabilities = Capabilities(
                guides=True,
                kv_cache_tokens=kv_cache_tokens,
                max_beam_width=2,
                top_log_probs=top_log_probs,
                reasoning_limit_tokens=self.limits.reasoning_limit_tokens,
            )
        self.generator = Generator(
            Preprocessor(engine, tokenizer, capabilities, cache_report=cache_report),
            tokenizer,
            lambda: self,  # type: ignore[arg-type, return-value]
            self.limits,
            admission=self.admission,
            heartbeat=self.heartbeat,
            metrics=self.metrics,
            logits=Admission(places, capabilities.logits_tokens or None, self.limits),
        )
        self.pipeline = RequestPipeline(engine, tokenizer, self.admission, self.generator, {})

    @asynccontextmanager
    async def answer(
        self, request: EngineRequest, *, on_end: Callable[[], None] | None = None, **_: object
    ) -> AsyncGenerator[_FakeAnswer, None]:
        """Stop a request that is abandoned as soon as it is left."""
        self.requests.append(request)
        with ExitStack() as left:
            left.callback(self.ended.append, request.request_id)
            cached = None if request.cache_report is None else self._cached
            answer = _FakeAnswer(
                self._script(request), self._tokenizer, request.top_log_probs, cached
            )
            if on_end is not None:
                answer.at_end.callback(on_end)
            answer.stopping = self.stopping
            if self.stopping is None:
                left.callback(answer.at_end.close)
            if request.prompt_log_probs:
                answer.prompt = tuple(request.input_ids)[1:]
            yield answer

    def counted(self, name: str) -> float:
        """Return the sum of a counter over all its labels."""
        return sum(
            sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name == f"trtllm_truss_{name}_total"
        )


class _FakeAnswer:
    stopping: asyncio.Future[None] | None

    def __init__(
        self, steps: Sequence[Step], tokenizer: TextTokenizer, top: int, cached: int | None
    ) -> None:
        self._steps = list(steps)
        self._tokenizer = self.tokenizer = tokenizer
        self._generated = 0
        self._top = top
        self._cached = cached
        self.prompt: tuple[int, ...] = ()
        self.at_end = ExitStack()
        self._alternatives: list[tuple[tuple[int, float], ...]] = []

    async def next(self, not_before: float, deadline: float) -> EngineChunk:
        while True:
            step = self._steps.pop(0)
            if isinstance(step, TrussError):
                self.at_end.close()
                raise step
            if isinstance(step, float):
                left_s = deadline - asyncio.get_running_loop().time()
                await asyncio.sleep(min(step, left_s))
                if step > left_s:
                    raise TimeoutError
                continue
            await asyncio.sleep(0)
            ids = step if isinstance(step, list) else self._tokenizer.encode(step)
            self._generated += len(ids)
            if not self._steps:
                self.at_end.close()
            # Like the real engine, of all tokens so far.
            log_probs = tuple(-float(place) for place in range(self._generated))
            self._alternatives += [((token_id, 0.0), (5, -9.0))[: self._top] for token_id in ids]
            return EngineChunk(
                tuple(ids),
                not self._steps,
                log_probs=log_probs,
                alternatives=tuple(self._alternatives),
                prompt_log_probs=tuple(-float(place) for place in range(len(self.prompt))),
                prompt_alternatives=tuple(
                    ((token_id, 0.0), (5, -9.0))[: self._top] for token_id in self.prompt
                ),
                cached=self._cached,
            )
