"""The worker process: admits requests, steps the engine, and misbehaves on demand.

`fake.json` in the checkpoint's folder sets the misbehaviour:

    log             file that gets a line for each kernel that is tuned or compiled
    weights         folder of the GGUF file for `genai`
    step_ms         least time of a step
    prefilled       file that gets a byte for each prompt that is processed
    load_after      file that must exist before the load ends
    load_exit       end with this status while loading
    load_oom        1: run out of memory while loading
    crash_after     end by SIGKILL after so many steps with requests
    hang_after      stop answering after so many steps with requests
    oom_after       run out of memory in a step: all its requests fail
    error_after     fail once in a step: all its requests fail, and the engine goes on
    fatal_after     fail in a thread of its own: the next, innocent request gets the error
    end_after       end the task by an error after so many steps; the process lives on
    ignore_abort    1: go on after an abort
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Client
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tensorrt_llm.fake.adapters import Adapters
from tensorrt_llm.fake.compute import load_compute
from tensorrt_llm.fake.errors import RequestError
from tensorrt_llm.fake.result import Readings, Response
from tensorrt_llm.fake.sampler import effective, is_cpp
from tensorrt_llm.fake.steps import Steps
from tensorrt_llm.fake.tuning import compute
from tensorrt_llm.fake.versions import IS_1_3, RELEASE

_BLOCKS = 64
_NO_LOG_PROBS = "return_log_probs not implemented for MTPSampler"
_NO_BEAM_LOG_PROBS = "Beam search with log probabilities needs a batch of one"
_OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


def worker_main(address, key, args):
    """Serve the proxy at an address from the first rank; the others take part in its steps.

    Source: `worker_main` in tensorrt_llm/executor/worker.py.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ranks = sys.modules["mpi4py.MPI"].COMM_WORLD if "mpi4py.MPI" in sys.modules else None
    steps = Steps(ranks) if ranks is not None else None
    if ranks is not None and ranks.Get_rank() > 0:
        compute(args, _behaviour(args), ranks.Get_rank(), steps.take_part)
        steps.follow()
        return
    try:
        _lead(Client(address, authkey=key), args, steps)
    finally:
        if steps is not None:
            steps.end()


_wires = []
"""Open until the process ends, also after a task that ended by an error."""


def _lead(wire, args, steps):
    try:
        behaviour = _behaviour(args)
        _check_combinations(args)
        _load(behaviour)
        compute(args, behaviour, 0, steps.lead if steps else lambda: None)
        worker = Worker(wire, args, behaviour, steps)
    except Exception as error:  # noqa: BLE001 - raised by the parent
        wire.send(error)
        return
    wire.send(None)
    _wires.append(wire)
    try:
        worker.run()
    except EOFError:  # the parent is gone: orphans of a killed parent stay
        time.sleep(3600)


def _behaviour(args):
    file = Path(args["model"]) / "fake.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _check_combinations(args):
    """Refuse what the executor does not combine.

    Sources: `create_py_executor` of _torch/pyexecutor/py_executor_creator.py, near 1.0 and 1.1, and
    an assertion of `MambaHybridCacheManager`, _torch/pyexecutor/mamba_cache_manager.py, near 1.2.
    """
    drafts, cache = args["speculative_config"], args["kv_cache_config"] or {}
    has_guides = args["guided_decoding_backend"] is not None and drafts is not None
    if has_guides and (RELEASE < (1, 1) or (RELEASE < (1, 2) and drafts.within)):
        raise ValueError("Guided decoding is not supported with speculative decoding.")
    config = json.loads((Path(args["model"]) / "config.json").read_text())
    is_recurrent = config.get("hybrid_override_pattern") or config.get("full_attention_interval")
    assert not (is_recurrent and cache.get("enable_block_reuse", True)), "block reuse is on"


def _load(behaviour):
    while (file := behaviour.get("load_after")) and not Path(file).exists():
        time.sleep(0.02)
    if "load_exit" in behaviour:
        time.sleep(0.5)  # imports of the real one take longer
        os._exit(behaviour["load_exit"])
    if behaviour.get("load_oom"):
        raise RuntimeError(_OOM)


class Worker:
    def __init__(self, wire, args, behaviour, steps=None):
        self._wire = wire
        self._args = args
        self._steps_of_all = steps
        self._behaviour = behaviour
        self._compute = load_compute(args)
        self._cache = BlockCache(args["kv_cache_config"] or {})
        self._adapters = Adapters(args)
        self._waiting = deque()
        self._running = {}
        self._steps = 0
        self._open = True
        self._statistics = deque(maxlen=(args.get("max_stats_len") or 1000) if IS_1_3 else None)
        self._responses = SimpleQueue()
        self._sender = Thread(target=self._send_responses, daemon=True)
        self._sender.start()

    def run(self):
        try:
            self._run()
        finally:
            self._send_the_rest()

    def _send_responses(self):
        """Send responses beside the steps.

        Source: `await_response_thread` of tensorrt_llm/executor/worker.py, near 1.0 to 1.3.
        """
        with suppress(OSError):  # the parent is gone
            while (responses := self._responses.get()) is not None:
                self._wire.send(responses)

    def _send_the_rest(self):
        self._responses.put(None)
        self._sender.join()

    def _run(self):
        while self._open:
            if not (self._waiting or self._running):
                self._compute.rest()
                self._take(*self._wire.recv())
            while self._open and self._wire.poll():
                self._take(*self._wire.recv())
            self._admit()
            if self._running:
                self._step()
                if self._args.get("enable_iter_perf_stats"):
                    self._statistics.append(json.dumps(self._statistic()))
                for name in ("stats", "kv_events") if not IS_1_3 else ():
                    if entries := self._take_readings(name):
                        self._responses.put(Readings(name, entries))

    def _take(self, kind, value):
        if kind == "shutdown":
            self._open = False
        elif kind == "abort":
            self._abort(value)
        elif kind in ("stats", "kv_events"):
            self._responses.put(Readings(kind, self._take_readings(kind)))
        else:
            self._add(*value)

    def _take_readings(self, name):
        if name == "kv_events":
            return self._cache.take_events()
        entries = [*self._statistics]
        self._statistics.clear()
        return entries

    def _statistic(self):
        """Return the statistics of a step.

        Source: the metrics endpoint in docs/source/commands/trtllm-serve/trtllm-serve.rst.
        """
        running = self._running.values()
        tokens = [len(request.prompt) + len(request.generated) for request in running]
        return {
            "cpuMemUsage": 0,
            "gpuMemUsage": 76_665_782_272,
            "inflightBatchingStats": {
                "avgNumDecodedTokensPerIter": 1.0,
                "microBatchId": 0,
                "numContextRequests": 0,
                "numCtxTokens": 0,
                "numGenRequests": len(tokens),
                "numPausedRequests": 0,
                "numScheduledRequests": len(tokens),
            },
            "iter": self._steps,
            "iterLatencyMS": 5.1,
            "kvCacheStats": self._cache.statistic(tokens),
            "numActiveRequests": len(tokens),
            "numCompletedRequests": 0,
            "numNewActiveRequests": 0,
            "numQueuedRequests": len(self._waiting),
            "pinnedMemUsage": 0,
            "queuedRequests": [],
            "timestamp": "",
        }

    def _add(self, request_id, prompt, params, lora_request, streaming):
        """Begin a request.

        Any other error than a RequestError leaves the loop and ends the worker's task. Source:
        `worker_main` of executor/worker.py, near 1.2.
        """
        try:
            if lora_request is not None and self._args["lora_config"]:
                self._adapters.use(lora_request)
            if refusal := self._refusal(prompt, params, lora_request):
                raise RequestError(refusal)
        except RequestError as error:
            self._responses.put([Response(request_id, error=error)])
            return
        room = self._args["max_seq_len"] - len(prompt)
        wanted = room if params.max_tokens is None else min(params.max_tokens, room)
        params = effective(params, self._args)
        request = Request(request_id, prompt, params, wanted, streaming, lora_request)
        self._waiting.append(request)

    def _refusal(self, prompt, params, lora_request):
        args = self._args
        if len(prompt) >= args["max_seq_len"]:
            return f"The prompt length {len(prompt)} exceeds max_seq_len {args['max_seq_len']}"
        if params.max_tokens is not None and params.max_tokens <= 0:
            return f"max_tokens must be greater than 0, but got {params.max_tokens}"
        # `_validate_request` of _torch/pyexecutor/py_executor.py, near 1.2
        inside = all(0 <= token < self._compute.vocab_size for token in prompt)
        if RELEASE >= (1, 2) and not inside:
            return "Token ID out of range"
        width = params.best_of if params.use_beam_search else 1
        if width != args["max_beam_width"]:
            return f"beam_width={width} must equal max_beam_width={args['max_beam_width']}"
        if IS_1_3 and self._drafts_within and params.wanted_log_probs is not None:
            return "The following output options are not supported with speculative decoding"
        if lora_request is not None and not (args["lora_config"] or args["enable_lora"]):
            return "LoRA is not enabled"
        return None

    def _abort(self, request_id):
        """Abort a request; one that waits is dropped, and nothing tells of its end.

        Sources: `_handle_canceled_requests` of _torch/pyexecutor/py_executor.py, near 1.0 and 1.2,
        and `update_waiting_queue` of _torch/pyexecutor/executor_request_queue.py, near 1.1.
        """
        if self._behaviour.get("ignore_abort"):
            return
        for request in [r for r in self._waiting if r.id == request_id]:
            self._waiting.remove(request)
        for request in [r for r in self._running.values() if r.id == request_id]:
            request.aborted = True  # ends in a later step

    def _admit(self):
        while self._waiting and len(self._running) < self._args["max_batch_size"]:
            request = self._waiting.popleft()
            self._running[request.id] = request
            if file := self._behaviour.get("prefilled"):
                with open(file, "ab") as prompts:  # noqa: PTH123 - pathlib cannot append bytes
                    prompts.write(b".")
            request.cached_tokens = self._cache.find(request.prompt)
            params = request.params
            copies = 1 if params.use_beam_search else params.best_of
            for copy in range(copies):
                seed = (params.seed or 0) + copy
                key = (request.id, copy)
                adapter = request.adapter
                self._compute.add(key, request.prompt, params, request.wanted, seed, adapter)

    def _step(self):
        self._steps += 1
        self._misbehave()
        if self._steps_of_all is not None:
            self._steps_of_all.lead()
        time.sleep(self._behaviour.get("step_ms", 0) / 1000)
        responses = []
        for request in [r for r in self._running.values() if r.aborted]:
            del self._running[request.id]
            for copy in range(request.params.best_of):
                self._compute.cancel((request.id, copy))
            self._cache.add(request)
            responses.append(Response(request.id, finish_reason="cancelled", final=True))
        for news in self._compute.step() if self._running else ():
            request_id, copy = news.key
            if request := self._running.get(request_id):
                responses += request.take(copy or news.index, news)
                if request.open == 0:
                    del self._running[request_id]
                    self._cache.add(request)
        if responses:
            self._responses.put(responses)

    @property
    def _drafts_within(self):
        drafts = self._args["speculative_config"]
        return drafts is not None and drafts.within

    def _misbehave(self):
        running = self._running.values()
        if self._drafts_within and any(r.params.wanted_log_probs is not None for r in running):
            self._fail_all(RequestError(_NO_LOG_PROBS))
        beams = [r for r in running if r.params.use_beam_search]
        wants = any(r.params.wanted_log_probs is not None for r in beams)
        if len(beams) > 1 and wants and is_cpp(self._args):  # sampler.py, near 1.2.1
            self._fail_all(RequestError(_NO_BEAM_LOG_PROBS))
        reached = {
            name
            for name, steps in self._behaviour.items()
            if name.endswith("_after") and name != "load_after" and self._steps > steps
        }
        if "crash_after" in reached:
            self._send_the_rest()
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang_after" in reached:
            self._send_the_rest()
            time.sleep(3600)
        if "end_after" in reached:
            raise ValueError("a tensor has no name")
        if "error_after" in reached:
            del self._behaviour["error_after"]
            self._fail_all(RequestError("index 3 is out of bounds for dimension 0"))
        if "oom_after" in reached:
            self._fail_all(RequestError(_OOM))
        if "fatal_after" in reached:
            self._responses.put(
                RuntimeError("CUDA error: an illegal memory access was encountered")
            )
            time.sleep(3600)

    def _fail_all(self, error):
        self._responses.put([Response(request_id, error=error) for request_id in self._running])
        for request in self._running.values():
            for copy in range(request.params.best_of):
                self._compute.cancel((request.id, copy))
        self._running.clear()


class BlockCache:
    """Sequences that ended; the last token of one was never an input.

    The figure is `prepopulated_prompt_len` of _torch/pyexecutor/llm_request.py, near 1.2: whole
    blocks, and a part of one with `enable_partial_reuse`, which is on by default, but never the
    last token. Here the cache has the last 64 sequences, or as many as `max_tokens` admits.

    Source of the events: `KVCacheEventManager` in cpp/tensorrt_llm/batch_manager, near 1.2, which
    tells blocks that are new, their last and partial one too, drops the oldest ones of a full
    buffer, and joins neighbouring removals. There, blocks of a prompt are told after its prefill.
    """

    def __init__(self, config):
        self._reuses = config.get("enable_block_reuse", True)
        self._partly = config.get("enable_partial_reuse", True)
        self._block = config.get("tokens_per_block") or 32
        self._most = (config.get("max_tokens") or 2**31) // self._block
        self._sequences = deque()
        self._uses = {}
        self._ids = itertools.count()
        buffered = config.get("event_buffer_max_size") or 0
        self._events = deque(maxlen=buffered) if buffered and self._reuses else None
        self._has_blocks = self._events is not None or self._most < 2**20
        self._tell("created", num_blocks_per_cache_level=[_BLOCKS, 0])

    def add(self, request):
        if request.params.use_beam_search:
            return
        tokens = [*request.prompt, *request.generated[:-1]]
        self._sequences.append(tokens)
        if self._has_blocks:
            self._store(tokens)
        while len(self._sequences) > 64 or len(self._uses) > self._most:
            oldest = self._sequences.popleft()
            if self._has_blocks:
                self._evict(oldest)

    def find(self, prompt):
        if not self._reuses:
            return 0
        longest = max((_common(prompt[:-1], other) for other in self._sequences), default=0)
        return longest if self._partly else longest // self._block * self._block

    def statistic(self, tokens):
        """Return the statistics of a cache with sequences of so many tokens."""
        used = sum(-(-count // self._block) for count in tokens)
        return {
            "allocNewBlocks": used,
            "allocTotalBlocks": used,
            "cacheHitRate": 0.0,
            "freeNumBlocks": _BLOCKS - used,
            "maxNumBlocks": _BLOCKS,
            "missedBlocks": used,
            "reusedBlocks": 0,
            "tokensPerBlock": self._block,
            "usedNumBlocks": used,
        }

    def take_events(self):
        events = [*self._events] if self._events else []
        if events:
            self._events.clear()
        return events

    def _tell(self, kind, **data):
        if self._events is not None:
            event = {"event_id": next(self._ids), "data": {"type": kind, **data}}
            self._events.append(json.dumps({**event, "window_size": 4096}))

    def _blocks(self, tokens):
        """Yield the hash and tokens of each block, and the hash before it."""
        before = None
        for start in range(0, len(tokens), self._block):
            part = tokens[start : start + self._block]
            seed = f"{before} {part}".encode()
            found = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
            yield found, part, before
            before = found

    def _store(self, tokens):
        parent, new = None, []
        for found, part, before in self._blocks(tokens):
            if found not in self._uses:
                parent = parent if new else before
                unique = [
                    {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                    for token in part
                ]
                block = {"type": "stored_block", "block_hash": found, "tokens": unique}
                new.append({**block, "cache_level": 0, "priority": 35})
            self._uses[found] = self._uses.get(found, 0) + 1
        if new:
            self._tell("stored", parent_hash=parent, blocks=new)

    def _evict(self, tokens):
        gone = []
        for found, _, _ in self._blocks(tokens):
            self._uses[found] -= 1
            if not self._uses[found]:
                del self._uses[found]
                gone.append(found)
        if gone:
            self._tell("removed", block_hashes=gone[::-1])


def _common(one, other):
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class Request:
    def __init__(self, request_id, prompt, params, wanted, streaming, adapter):
        self.id = request_id
        self.prompt = prompt
        self.params = params
        self.wanted = wanted
        self.streaming = streaming
        self.adapter = adapter
        self.aborted = False
        self.open = params.best_of
        self.cached_tokens = 0
        self.generated = []
        self._held = [([], []) for _ in range(params.best_of)]
        self._counts = [0] * params.best_of

    def take(self, index, news):
        """Turn the progress of one sequence into responses."""
        tokens, log_probs = self._held[index]
        tokens += news.tokens
        log_probs += news.log_probs or ()
        self._counts[index] += len(news.tokens)
        self.generated += news.tokens
        if not (news.done or self.streaming):
            return
        if not (tokens or news.done):
            return
        reason = self._reason(index, tokens) if news.done else None
        self.open -= news.done
        self._held[index] = ([], [])
        yield Response(
            self.id,
            index,
            tuple(tokens),
            None if self.params.wanted_log_probs is None else tuple(log_probs),
            finish_reason=reason,
            final=news.done,
            replaces=self.params.use_beam_search,
            cached_tokens=self.cached_tokens,
        )

    def _reason(self, index, tokens):
        """Return the reason for the end; the length is tested before stop words."""
        if not self.params.ignore_eos and tokens and tokens[-1] == self.params.end_id:
            return "stop"
        return "length" if self._counts[index] >= self.wanted else "stop"
