"""In-flight batching as in the executor: one thread, one token per request and iteration.

Logits are those of `known_model`, before the padding of the vocabulary, in the shapes of
`fillTritonResponse` and `createResult` (the sources are beside `Generation.logits`).
"""

import itertools
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_backends.tensors import readable_copy, repair_reading

sys.path.append(str(Path(__file__).resolve().parents[2]))
from known_model import logits_after
from sampling import Sampler, construct, validated

repair_reading()

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LATER = (
    "Executor failed process requestId {} due to the following error: Encountered an error "
    "when fetching new request: "
)
_LOG_PROB = -0.5
_HELD_S = 0.01
_AT_ONCE = "Cannot process new request: [TensorRT-LLM][ERROR] Assertion failed: {}"


class Limits(NamedTuple):
    max_batch_size: int
    max_seq_len: int
    max_input_len: int
    evicts: bool
    max_beam_width: int
    release: tuple[int, ...]
    check_s: float
    vocabulary: int
    padded_vocabulary: int
    context_logits: bool
    generation_logits: bool
    reuses_cache: bool
    normalizes: bool


class Generation:
    """One request in flight."""

    def __init__(self, request, behaviour, limits):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.inputs = {name: tensor.ravel() for name, tensor in tensors.items()}
        self.id = request.request_id()
        self.key = _key(self.id, limits.release)
        self.sender = request.get_response_sender()
        self.behaviour = behaviour
        self.outputs = request.requested_output_names()
        self.prompt = self.inputs["input_ids"].tolist()
        self.tokens = behaviour.get("tokens", self.prompt)
        if "scripts" in behaviour:
            self.tokens = self._scripted(behaviour["scripts"])
        self.beam_width = self._value("beam_width", 1)
        self.wanted = min(self._value("request_output_len"), limits.max_seq_len - len(self.prompt))
        if "tokens" in behaviour or "scripts" in behaviour:
            self.wanted = min(self.wanted, len(self.tokens))
        self.end_id = self._value("end_id", -1)
        self.streaming = self._value("streaming", False)
        self.excludes_prompt = self._value("exclude_input_in_output", False)
        self.wants_log_probs = self._value("return_log_probs", False)
        self.wants_context_logits = self._value("return_context_logits", False)
        self.wants_generation_logits = self._value("return_generation_logits", False)
        self.first_logits = 0
        # triton_backend/inflight_batcher_llm/src/model_instance_state.cc, fillTritonResponse (1.0
        # to 1.2), and utils.cc of tensorrtllm_backend v0.16.0 to v0.18.2
        asks = "return_perf_metrics"
        if (0, 16) <= limits.release < (0, 19):
            asks = "return_kv_cache_reuse_stats"
        self.wants_metrics = limits.release >= (0, 16) and self._value(asks, False)
        self.reused_blocks = 0
        ignores_words = behaviour.get("ignore_stop_words")
        self.stop_words = [] if ignores_words else _words(self.inputs.get("stop_words_list"))
        self.is_stop = self._value("stop", False) and not behaviour.get("ignore_stop")
        self.ends_alone = behaviour.get("final", "with_last") != "with_last"
        self.stopped = False
        self.ignores_cancel = bool(behaviour.get("ignore_cancel"))
        self.output: list[int] = []
        self.log_probs: list[float] = []
        self._limits = limits
        self._sampler = None
        self._delay_s = behaviour.get("delay_ms", 0) / 1000
        self.due = time.monotonic() + behaviour.get("first_delay_ms", self._delay_s * 1000) / 1000

    def _value(self, name, default: Any = None):
        return self.inputs[name].item() if name in self.inputs else default

    def _scripted(self, scripts):
        words = [
            self._value(name, b"").decode()
            for name in ("guided_decoding_guide_type", "guided_decoding_guide")
        ]
        guide = " ".join(words).strip()
        return next(
            (
                ids
                for prompt, text, ids in scripts
                if self.prompt[len(self.prompt) - len(prompt) :] == prompt
                and (text in guide if text and guide else text is None and not guide)
            ),
            self.prompt,
        )

    def mistake(self):
        """Return what is wrong with the tensors; None if nothing is."""
        if self._value("request_output_len") <= 0:  # requestImpl.h (near 1.0)
            return "mMaxNewTokens > 0"
        release = self._limits.release
        scalars = {name: array.item() for name, array in self.inputs.items() if array.size == 1}
        try:
            config = construct(scalars, release)
        except ValueError as error:
            return str(error)
        if not self.prompt or self._value("input_lengths") != len(self.prompt):
            return "input_lengths == input_ids.size()"
        if any(shape[0] != 1 for shape in self.shapes.values()):
            return "one sample a request"
        for name in ("stop_words_list", "bad_words_list"):
            if name in self.inputs and not _are_words(self.shapes[name], self.inputs[name]):
                return f"{name}: [1, 2, N] of ids, and of offsets that rise to N, then -1"
        if self.behaviour.get("draws"):
            self._sampler = Sampler(
                validated(config, release),
                normalizes=self._limits.normalizes,
                bias=self.inputs.get("embedding_bias"),
                bad_words=_words(self.inputs.get("bad_words_list")),
                end_id=self.end_id,
            )
        return None

    def refusal(self, limits):
        if self.key is None:
            return "Invalid requestId, must be uint64_t"
        longest = limits.max_input_len
        if len(self.prompt) > longest:
            return (
                f"Prompt length ({len(self.prompt)}) exceeds maximum input length ({longest}). "
                "Set log level to info and check TRTGptModel logs for how maximum input length "
                "is set"
            )
        # executor/executorImpl.cpp, fetchNewRequests (0.19 to 1.2): a stream that may be evicted
        # must fit into one prompt again.
        whole = min(len(self.prompt) + self._value("request_output_len"), limits.max_seq_len)
        if self.streaming and limits.evicts and whole - 1 > longest:
            return (
                "Request sequence length is potentially greater than max input length. This cannot "
                "be run unless streaming is disabled, context chunking is enabled or the "
                "GUARANTEED_NO_EVICT scheduling policy is used"
            )
        if limits.release < (0, 10) and self.beam_width != limits.max_beam_width:
            return (
                f"Request with beam width {self.beam_width} differs from the max beam width "
                f"{limits.max_beam_width}"
            )
        if self.beam_width > limits.max_beam_width:
            return (
                f"Requested beam width {self.beam_width} is incorrect: "
                f"the engine has {limits.max_beam_width}"
            )
        # executor/executorImpl.cpp, fetchNewRequests (near 1.0)
        if self.wants_context_logits and not limits.context_logits:
            return (
                "[TensorRT-LLM][ERROR] Assertion failed: Return context logit need to build engine "
                "with gather_context_logits"
            )
        if self.wants_generation_logits and not limits.generation_logits:
            return (
                "[TensorRT-LLM][ERROR] Assertion failed: To return generation logits, "
                "gather_generation_logits must be enabled in ExecutorConfig"
            )
        return None

    def logits(self, new, limits):
        """Return the tensors of logits in a response with some new ids.

        batch_manager/llmRequest.cpp, createResult (near 1.0): those of the prompt are in each
        response, without the part that the KV cache had (handleContextLogits.cpp); a stream has
        those of its new tokens, another answer a tensor for `request_output_len` tokens.
        """
        if self.wants_context_logits:
            rows = self._rows(len(self.prompt), limits)
            for place in range(self.first_logits, len(self.prompt)):
                rows[place, : limits.vocabulary] = logits_after(
                    self.prompt[: place + 1], limits.vocabulary
                )
            yield _tensor("context_logits", rows[None], np.float32)
        if self.wants_generation_logits:
            count = len(new) if self.streaming else len(self.output)
            room = count if self.streaming else self._value("request_output_len")
            rows = self._rows(room, limits)
            for row in range(count):
                before = self.prompt + self.output[: len(self.output) - count + row]
                rows[row, : limits.vocabulary] = logits_after(before, limits.vocabulary)
            yield _tensor(
                "generation_logits",
                rows[None, :, None] if self.streaming else rows[None, None],
                np.float32,
            )

    @staticmethod
    def _rows(count, limits):
        rows = np.full((count, limits.padded_vocabulary), np.nan)  # memory is not initialized
        rows[:, limits.vocabulary :] = 0
        return rows

    def is_held(self, now):
        """Put the next token off until the file `released` has a byte for it."""
        file = self.behaviour.get("released")
        held = file is not None and Path(file).stat().st_size <= len(self.output)
        if held:
            self.due = now + _HELD_S
        return held

    def step(self):
        """Return the ids of one iteration, and whether they are the last."""
        self.due += self._delay_s
        if len(self.output) >= self.wanted:
            return [], True
        token, log_prob = self._next()
        if token == self.end_id:
            return [], True
        self.output.append(token)
        self.log_probs.append(log_prob)
        ended = any(self.output[-len(word) :] == word for word in self.stop_words)
        ended |= len(self.output) >= self.wanted and not self.ends_alone
        return [token], ended

    def _next(self):
        if self._sampler is None:
            return self.tokens[len(self.output) % len(self.tokens)], _LOG_PROB
        logits = logits_after([*self.prompt, *self.output], self._limits.vocabulary)
        return self._sampler.choose(logits, self.prompt, self.output)


def _key(request_id, release):
    """Return what the backend tells requests apart by; None if it refuses the id.

    inflight_batcher_llm/src/utils.cc:142-174 of tensorrtllm_backend v0.7.0 to v0.9.0: `stoul`,
    which takes a prefix of digits; else a hash from 0.8 on.
    """
    if release >= (0, 10):
        return request_id
    if not request_id:
        return secrets.randbits(64)
    number = re.match(r"\s*[+-]?\d+", request_id)
    if number and abs(int(number[0])) < 2**64:
        return int(number[0]) % 2**64
    return None if release < (0, 8) else hash(request_id)


class BlockCache:
    """Blocks of ended sequences; a prompt reuses them from its beginning, the last one in part.

    The last token of a sequence was never an input, so it is in no block, and the last one of a
    prompt is always computed.

    Source: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, `loadOrAllocateBlocks` and
    `addSequence`, near 1.1 (`enablePartialReuse` is true by default).
    """

    BLOCK_TOKENS = 32

    def __init__(self):
        self._blocks: dict[tuple[int, ...], Any] = {}  # each with those that follow it

    def add(self, ids):
        followers = self._blocks
        for start in range(0, len(ids), self.BLOCK_TOKENS):
            followers = followers.setdefault(tuple(ids[start : start + self.BLOCK_TOKENS]), {})

    def reused(self, prompt):
        """Return the tokens of a prompt that are in the cache, and the blocks that have them."""
        usable, end, blocks, followers = prompt[:-1], 0, 0, self._blocks
        while end < len(usable):
            wanted = tuple(usable[end : end + self.BLOCK_TOKENS])
            if len(wanted) == self.BLOCK_TOKENS and wanted in followers:
                end, blocks, followers = end + len(wanted), blocks + 1, followers[wanted]
                continue
            longest = max((_common(block, wanted) for block in followers), default=0)
            return end + longest, blocks + (longest > 0)
        return end, blocks


def _common(one, other):
    """Return the length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


class Batch:
    def __init__(self, behaviour, limits, log, steps=None):
        self._behaviour = behaviour
        self._steps = steps
        self._limits = limits
        self._log = log
        self._wire = threading.Lock()  # the stub sometimes crashes when two threads use it at once
        self._news = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []
        self._cache = BlockCache()
        self._iterations = 0
        self._runs = behaviour.get("runs", limits.max_batch_size)
        self._look_at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, request, behaviour):
        with self._wire:
            generation = Generation(request, behaviour, self._limits)
        if behaviour.get("log_requests"):
            tensors = {name: _plain(value) for name, value in generation.inputs.items()}
            note = {"inputs": tensors, "outputs": list(generation.outputs)}
            self._log(f"request id={generation.id} {json.dumps(note)}")
        refusal = generation.refusal(self._limits)
        if generation.is_stop and generation.key is not None:
            self._stop(generation)
        elif mistake := generation.mistake():
            self._send_error(generation, _AT_ONCE.format(mistake))
        elif refusal:
            self._send_error(generation, _LATER.format(generation.id) + refusal)
        elif self._limits.release < (0, 10) and self._holds(generation.key):
            # work_items_queue.cc:59 (v0.9.0)
            text = f"requestId {generation.key} is already in progress, request is ignored."
            self._send_error(generation, text)
        else:
            with self._news:
                self._waiting.append(generation)
                self._news.notify()

    def _holds(self, key):
        with self._news:
            return any(other.key == key for other in (*self._waiting, *self._active))

    def _stop(self, order):
        """Stop a request, or none: handleStopRequest of model_instance_state.cc (near 1.1)."""
        if not order.id:
            text = "Trying to stop a request but request ID is not provided"
            self._send_error(order, text)
            return
        with self._news:
            for generation in (*self._waiting, *self._active):
                if generation.key == order.key:
                    generation.stopped = True
            self._news.notify()
        with self._wire:
            order.sender.send(flags=_FINAL)

    def _run(self):
        while True:
            with self._news:
                if (idle_s := self._idle_s()) != 0:
                    self._news.wait(idle_s)
                looks = time.monotonic() >= self._look_at
                if looks:
                    self._look_at = time.monotonic() + self._limits.check_s
                self._drop_cancelled(looks)
                while self._has_place():
                    self._begin(self._waiting.popleft())
            self._iterate()

    def _begin(self, generation):
        """Process a prompt, of a cancelled request too.

        executorImpl.cpp, executionLoop (near 0.19): requests are fetched after cancelled ones were
        ended, and before the next step.
        """
        self._active.append(generation)
        if file := self._behaviour.get("prefilled"):
            with open(file, "ab") as prompts:  # noqa: PTH123 - pathlib cannot append bytes
                prompts.write(b".")
        reused, generation.reused_blocks = self._cache.reused(generation.prompt)
        if self._limits.reuses_cache:
            generation.first_logits = reused
        if generation.behaviour.get("log_reuse"):
            length = len(generation.prompt)
            self._log(f"reused id={generation.id} tokens={reused} of={length}")

    def _has_place(self):
        """Return True if the first waiting request may run.

        executorImpl.cpp, getLeaderNewReqWithIds (near 0.19 and 1.1): one width runs at a time, and
        a request of another one blocks the queue.
        """
        if not self._waiting or len(self._active) >= self._runs:
            return False
        return not self._active or self._active[0].beam_width == self._waiting[0].beam_width

    def _idle_s(self):
        """Return the seconds until the next work is due; None without a request."""
        if self._has_place():
            return 0
        if not self._active:
            return None
        if any(each.stopped and not each.ignores_cancel for each in self._active):
            return 0
        first = min(self._look_at, *(generation.due for generation in self._active))
        return max(0, first - time.monotonic())

    def _drop_cancelled(self, looks):
        """End cancelled requests; waiting ones stay until they are active.

        executorImpl.cpp, terminateCancelledRequests (near 1.1).
        """
        for generation in tuple(self._active):
            if generation.ignores_cancel:
                continue
            asks = looks and not generation.behaviour.get("only_stop")
            with self._wire:
                gone = generation.stopped or (asks and generation.sender.is_cancelled())
            if gone:
                self._active.remove(generation)
                self._cache.add(generation.prompt + generation.output[:-1])
                self._log(f"stopped id={generation.id} after={len(generation.output)}")
                self._send(generation, [], last=True)

    def _iterate(self):
        now = time.monotonic()
        due = [each for each in self._active if each.due <= now and not each.is_held(now)]
        if not due:
            return
        self._iterations += 1
        self._misbehave()
        if self._steps is not None:
            self._steps.lead()
        time.sleep(self._behaviour.get("step_ms", 0) / 1000)
        if self._iterations > self._behaviour.get("broken_after", float("inf")):
            self._fail_all()
            return
        for generation in due:
            if generation.behaviour.get("error_at") == len(generation.output):
                self._send_error(generation, generation.behaviour["error"])
                self._active.remove(generation)
                continue
            new, last = generation.step()
            if generation.streaming:
                self._send(generation, new, last=last)
            elif last:
                prompt = [] if generation.excludes_prompt else generation.prompt
                self._send(generation, prompt + generation.output, last=True)
            if last:
                self._active.remove(generation)
                self._cache.add(generation.prompt + generation.output[:-1])

    def _fail_all(self):
        """Fail the active requests and go on: executorImpl.cpp, forwardAsync (near 1.1)."""
        for generation in self._active:
            text = (
                f"Executor failed process requestId {generation.id} due to the following error: "
                "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime "
                "error in cudaEventSynchronize(get()): an illegal memory access was encountered "
                "(/src/tensorrt_llm/cpp/include/tensorrt_llm/runtime/cudaEvent.h:66)"
            )
            self._send_error(generation, text)
        self._active.clear()

    def _misbehave(self):
        if self._iterations > self._behaviour.get("crash_after", float("inf")):
            self._log(
                "[TensorRT-LLM][ERROR] CUDA runtime error in cudaEventSynchronize: an "
                "illegal memory access was encountered"
            )
            os.kill(os.getppid(), signal.SIGABRT)
            time.sleep(60)
        if self._iterations > self._behaviour.get("hang_after", float("inf")):
            self._log("hanging")
            time.sleep(3600)

    def _send(self, generation, ids, *, last):
        flags = _FINAL if last else 0
        if last and not ids and generation.behaviour.get("final") == "empty":
            with self._wire:
                generation.sender.send(flags=flags)
            return
        tensors = [_tensor("output_ids", [[ids]]), _tensor("sequence_length", [[len(ids)]])]
        if generation.wants_log_probs:
            each = generation.log_probs
            tensors.append(_tensor("cum_log_probs", [[sum(each)]], np.float32))
            tensors.append(_tensor("output_log_probs", [[each]], np.float32))
        tensors += generation.logits(ids, self._limits)
        if generation.wants_metrics:  # in each response; the backend sends nine others with it
            tensors.append(_tensor("kv_cache_reused_blocks", [[generation.reused_blocks]]))
        # The stub crashes on tensors that were not requested (3.13).
        wanted = [tensor for tensor in tensors if tensor.name() in generation.outputs]
        response = pb_utils.InferenceResponse(output_tensors=wanted)
        with self._wire:
            generation.sender.send(response, flags=flags)

    def _send_error(self, generation, text):
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        with self._wire:
            generation.sender.send(response, flags=_FINAL)


def _words(tensor):
    """Return the words of a `[2, N]` tensor: ids, and the offset behind each word."""
    if tensor is None:
        return []
    ids, ends = tensor.reshape(2, -1).tolist()
    starts = [0, *ends]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False) if end > start]


def _are_words(shape, values):
    """Return whether a word list can be read: inflight_batcher_llm/src/utils.cc (v0.12)."""
    if len(shape) != 3 or shape[1] != 2:
        return False
    _, ends = values.reshape(2, -1).tolist()
    used = [end for end in ends if end != -1]
    rises = all(one < other for one, other in itertools.pairwise([0, *used]))
    return rises and ends[: len(used)] == used and (not used or used[-1] <= len(ends))


def _tensor(name, values, dtype=np.int32):
    return pb_utils.Tensor(name, readable_copy(np.array(values, dtype)))


def _plain(array):
    return [x.decode() if isinstance(x, bytes) else x for x in array.tolist()]
