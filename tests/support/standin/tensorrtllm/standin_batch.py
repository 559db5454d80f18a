"""In-flight batching as the executor does it: one thread, one token per request and iteration."""

import os
import signal
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.numpy_abi import readable_copy, repair_reading

repair_reading()

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LATER = (
    "Executor failed process requestId {} due to the following error: Encountered an error "
    "when fetching new request: "
)


class Limits(NamedTuple):
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int
    check_s: float


class Generation:
    """One request in flight."""

    def __init__(self, request, script, limits):
        inputs = {tensor.name(): tensor.as_numpy().ravel() for tensor in request.inputs()}

        def value(name, default: Any = None):
            return inputs[name].item() if name in inputs else default

        self.id = request.request_id()
        self.sender = request.get_response_sender()
        self.prompt = inputs["input_ids"].tolist()
        self.source = script or self.prompt
        self.beam_width = value("beam_width", 1)
        self.wanted = min(value("request_output_len"), limits.max_seq_len - len(self.prompt))
        self.end_id = value("end_id", -1)
        self.streaming = value("streaming", False)
        self.excludes_prompt = value("exclude_input_in_output", False)
        self.stop_words = _words(inputs.get("stop_words_list"))
        self.is_stop = value("stop", False)
        self.stopped = False
        self.output: list[int] = []

    def refusal(self, limits):
        longest = min(limits.max_seq_len - 1, limits.max_num_tokens)
        if len(self.prompt) > longest:
            return (
                f"Prompt length ({len(self.prompt)}) exceeds maximum input length ({longest}). "
                "Set log level to info and check TRTGptModel logs for how maximum input length "
                "is set"
            )
        if self.beam_width > limits.max_beam_width:
            return (
                f"Requested beam width {self.beam_width} is incorrect: "
                f"the engine has {limits.max_beam_width}"
            )
        return None

    def step(self):
        """One iteration: new ids, and whether they are the last."""
        token = self.source[len(self.output) % len(self.source)]
        if token == self.end_id:
            return [], True
        self.output.append(token)
        ended = any(self.output[-len(word) :] == word for word in self.stop_words)
        return [token], ended or len(self.output) >= self.wanted


class Batch:
    """The engine."""

    def __init__(self, behaviour, limits, say):
        self._behaviour = behaviour
        self._limits = limits
        self._say = say
        self._wire = threading.Lock()  # the stub dies at times when two threads use it at once
        self._news = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []
        self._iterations = 0
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, request):
        with self._wire:
            generation = Generation(request, self._behaviour.get("script"), self._limits)
        refusal = generation.refusal(self._limits)
        if generation.is_stop:
            self._stop(generation)
        elif refusal:
            self._send_error(generation, _LATER.format(generation.id) + refusal)
        else:
            with self._news:
                self._waiting.append(generation)
                self._news.notify()

    def _stop(self, order):
        with self._news:
            for generation in (*self._waiting, *self._active):
                if generation.id == order.id:
                    generation.stopped = True
        self._send(order, [], last=True)

    def _run(self):
        look_at = 0.0
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._active)
                looks = time.monotonic() >= look_at
                if looks:
                    look_at = time.monotonic() + self._limits.check_s
                self._drop_cancelled(looks)
                while self._waiting and len(self._active) < self._limits.max_batch_size:
                    self._active.append(self._waiting.popleft())
            self._iterate()

    def _drop_cancelled(self, looks):
        if self._behaviour.get("ignore_cancel"):
            return
        for place in (self._waiting, self._active):
            for generation in tuple(place):
                with self._wire:
                    gone = generation.stopped or (looks and generation.sender.is_cancelled())
                if gone:
                    place.remove(generation)
                    self._say(f"cancelled id={generation.id} after={len(generation.output)}")
                    self._send(generation, [], last=True)

    def _iterate(self):
        if self._active:
            self._iterations += 1
            self._misbehave()
        time.sleep(self._behaviour.get("step_ms", 0) / 1000)
        for generation in tuple(self._active):
            new, last = generation.step()
            if generation.streaming:
                self._send(generation, new, last=last)
            elif last:
                prompt = [] if generation.excludes_prompt else generation.prompt
                self._send(generation, prompt + generation.output, last=True)
            if last:
                self._active.remove(generation)

    def _misbehave(self):
        if self._iterations > self._behaviour.get("crash_after", float("inf")):
            self._say(
                "[TensorRT-LLM][ERROR] CUDA runtime error in cudaEventSynchronize: an "
                "illegal memory access was encountered"
            )
            os.kill(os.getppid(), signal.SIGABRT)
            time.sleep(60)
        if self._iterations > self._behaviour.get("hang_after", float("inf")):
            self._say("hanging")
            time.sleep(3600)

    def _send(self, generation, ids, *, last):
        tensors = [
            _tensor("output_ids", [[ids]]),
            _tensor("sequence_length", [[len(ids)]]),
        ]
        response = pb_utils.InferenceResponse(output_tensors=tensors)
        with self._wire:
            generation.sender.send(response, flags=_FINAL if last else 0)

    def _send_error(self, generation, text):
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        with self._wire:
            generation.sender.send(response, flags=_FINAL)


def _words(tensor):
    """The words of a `[2, N]` tensor: ids, and the offset behind each word."""
    if tensor is None:
        return []
    ids, ends = tensor.reshape(2, -1).tolist()
    starts = [0, *ends]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False) if end > start]


def _tensor(name, values):
    return pb_utils.Tensor(name, readable_copy(np.array(values, np.int32)))
