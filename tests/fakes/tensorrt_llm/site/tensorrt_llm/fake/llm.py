"""`LLM` and its proxy of the worker processes."""

import atexit
import itertools
import json
import queue
import secrets
import threading
import time
import types
import weakref
from concurrent.futures import wait
from multiprocessing.connection import Listener
from multiprocessing.connection import wait as wait_for_input
from pathlib import Path

from tensorrt_llm.fake.errors import EngineDeadError, LoRARequest, RequestError
from tensorrt_llm.fake.llm_args import check_arguments
from tensorrt_llm.fake.mpi_session import new_session
from tensorrt_llm.fake.result import (
    AsyncQueue,
    IterationResult,
    Readings,
    RequestOutput,
    Response,
)
from tensorrt_llm.fake.sampling import SamplingParams
from tensorrt_llm.fake.versions import IS_1_3, RELEASE
from tensorrt_llm.fake.worker import worker_main

_SHUTDOWN_OF_DEAD_S = 5
_WITH_PROCESSOR = {
    *("Llama4ForConditionalGeneration", "Mistral3ForConditionalGeneration"),
    *("Gemma3ForConditionalGeneration", "LlavaNextForConditionalGeneration"),
    *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    *("Phi4MMForCausalLM", "HCXVisionForCausalLM", "NemotronH_Nano_VL_V2"),
}
_POLL_S = 0.1


class LLM:
    def __init__(self, model, tokenizer=None, **given):
        given = {"model": model, "tokenizer": tokenizer, **given}
        self.args = types.SimpleNamespace(**check_arguments(given))
        _load_config(model, trusted=given.get("trust_remote_code") or not IS_1_3)
        _look_for_processor(Path(model))
        self._eos_id = None
        if not self.args.skip_tokenizer_init:
            self._eos_id = _read_eos_id(Path(tokenizer or model))
        self._executor = Proxy(vars(self.args))
        atexit.register(_shut_down, weakref.ref(self))

    def generate_async(
        self,
        inputs,
        sampling_params=None,
        lora_request=None,
        prompt_adapter_request=None,
        streaming=False,
        kv_cache_retention_config=None,
        disaggregated_params=None,
        **later,
    ):
        allowed = {"scheduling_params", "cache_salt", "_postproc_params"}
        allowed |= {"priority"} if IS_1_3 else set()
        allowed |= {"trace_headers"} if RELEASE >= (1, 2) else set()
        if later.keys() - allowed:
            raise TypeError(f"generate_async() got unexpected {sorted(later.keys() - allowed)}")
        if lora_request is not None and not isinstance(lora_request, LoRARequest):
            raise TypeError(f"lora_request is {lora_request!r}")
        params = sampling_params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams, got {type(params)}")
        if not isinstance(inputs, list):
            raise TypeError(f"The inputs must be a list of ids here, but got {type(inputs)}")
        assert type(inputs[0]) is int, "prompt_token_ids must be a list of int"
        params.setup(self._eos_id)
        self._check(inputs, params)
        return self._executor.submit(inputs, params, lora_request, streaming)

    def get_stats(self, timeout=2):
        return self._executor.get("stats", timeout)

    def get_stats_async(self, timeout=2):
        return self._executor.get_async("stats", timeout)

    def get_kv_cache_events(self, timeout=2):
        return self._executor.get("kv_events", timeout)

    def get_kv_cache_events_async(self, timeout=2):
        return self._executor.get_async("kv_events", timeout)

    def _check_health(self):
        return self._executor.check_health()

    def shutdown(self):
        if getattr(self, "_executor", None) is not None:
            self._executor.shutdown()
            self._executor = None

    def __del__(self):
        """Shut down, which waits for ever for a dead worker, in the thread that drops it.

        Source: `BaseLLM.__del__` of llmapi/llm.py, near 1.2.
        """
        self.shutdown()

    def _check(self, prompt, params):
        longest = self.args.max_num_tokens
        if len(prompt) > longest and not self.args.enable_chunked_prefill:
            raise RequestError(  # as `_check_arguments` in llmapi/llm.py of 1.2.1
                f"The length of prompt tokens ({len(prompt)}) should not exceed max_num_tokens "
                f"({longest})"
            )
        if params.guided_decoding is not None and not self.args.guided_decoding_backend:
            raise ValueError("Guided decoding needs guided_decoding_backend.")


def _shut_down(reference):
    if (llm := reference()) is not None:
        llm.shutdown()


class Proxy:
    """The worker processes, and the thread that reads its responses for all requests."""

    def __init__(self, args):
        self._ids = itertools.count(1)
        self._results = {}
        self._fatal = None
        self._closed = False
        self._dead = threading.Event()
        self.readings = {}
        if IS_1_3:
            self.rpc_client = queue.Queue()
        self._session = new_session(args["tensor_parallel_size"] * args["pipeline_parallel_size"])
        self._wire = self._start_workers(args)
        # mpi4py waits for its workers in such a function too, and this one runs before.
        threading._register_atexit(self._ask_to_shut_down)
        threading.Thread(target=self._dispatch, daemon=True).start()

    def submit(self, prompt, params, lora_request, streaming):
        if self._fatal is not None:
            self.shutdown()
            raise self._fatal
        if self._closed:
            raise RuntimeError("LLM is shutting down.")
        if IS_1_3 and self._dead.is_set():
            raise EngineDeadError("the engine is dead")
        if not self.readings:
            self.readings = {name: IterationResult() for name in ("stats", "kv_events")}
        request_id = next(self._ids)
        result = RequestOutput(request_id, prompt, params, lambda key: self._send("abort", key))
        self._results[request_id] = result
        self._send("add", (request_id, prompt, params, lora_request, streaming))
        return result

    def get(self, name, timeout):
        """Ask the worker, or read the queue, which belongs to an event loop here.

        Source: `get_stats` and `get_kv_events` of executor/proxy.py after pull request 9980 and
        before it.
        """
        if not IS_1_3:
            return self._result(name).get_results()
        try:
            self._send(name, None)
            return [json.loads(entry) for entry in self.rpc_client.get(timeout=10)]
        except queue.Empty:  # the library swallows all errors
            return []

    def get_async(self, name, timeout):
        if IS_1_3:
            raise NotImplementedError("it blocks the caller's event loop")
        result = self._result(name)
        result.timeout = timeout
        return result

    def _result(self, name):
        assert name in self.readings, "IterationResult is not instantiated."
        return self.readings[name]

    def check_health(self):
        """Return True unless it shuts down; 1.3 looks at the workers and their errors too.

        Source: `_check_health` in llmapi/llm.py of 1.2.1.
        """
        has_failed = IS_1_3 and (self._dead.is_set() or self._fatal is not None)
        return not self._closed and not has_failed

    def shutdown(self):
        """Wait for the workers: for ever if one has died, unless this version has noticed it."""
        has_noticed = IS_1_3 and self._dead.is_set()
        self._ask_to_shut_down()
        wait(self.mpi_futures, _SHUTDOWN_OF_DEAD_S if has_noticed else None)
        if not has_noticed:
            self._session.shutdown()

    def _ask_to_shut_down(self):
        if not self._closed:
            self._closed = True
            self._send("shutdown", None)

    def _send(self, kind, value):
        try:
            self._wire.send((kind, value))
        except OSError:
            if IS_1_3:
                self._dead.set()

    def _start_workers(self, args):
        """Start workers, and return the connection to their first once it is ready.

        Source: `_start_executor_workers` in tensorrt_llm/executor/proxy.py, which waits until there
        is a status or a future has finished. What became of a worker is not looked at before 1.3.
        """
        key = secrets.token_bytes(32)
        with Listener(f"\0trtllm-{secrets.token_hex(8)}", "AF_UNIX", authkey=key) as listener:
            self.mpi_futures = self._session.submit(worker_main, listener.address, key, args)
            for future in self.mpi_futures:
                future.add_done_callback(self._take_result)
            while not wait_for_input([listener._listener._socket], _POLL_S):
                self._look_for_death()
            wire = listener.accept()
        while not wire.poll(_POLL_S):
            self._look_for_death()
        try:
            error = wire.recv()
        except EOFError:
            while not IS_1_3:
                self._look_for_death()
                time.sleep(_POLL_S)
            raise RuntimeError("Executor worker died during initialization") from None
        if error is not None:
            raise RuntimeError("Executor worker returned error") from error
        return wire

    def _look_for_death(self):
        if any(future.done() for future in self.mpi_futures):
            raise RuntimeError("Executor worker died during initialization")

    def _take_result(self, future):
        """Keep the error of a worker's task for the next request."""
        if (error := future.exception()) is not None:
            self._fatal = error

    def _dispatch(self):
        while True:
            try:
                responses = self._wire.recv()
            except (EOFError, OSError):
                break
            if isinstance(responses, Exception):
                self._fatal = responses
            elif isinstance(responses, Readings) and IS_1_3:
                self.rpc_client.put(responses.entries)
            elif isinstance(responses, Readings):
                if responses.name in self.readings:
                    self.readings[responses.name].entries += responses.entries
            else:
                self._deliver(responses)
        if IS_1_3:
            self._dead.set()
            error = EngineDeadError("the engine is dead")
            self._deliver([Response(key, error=error) for key in self._results])

    def _deliver(self, responses):
        queues = []
        for response in responses:
            result = self._results.get(response.request_id)
            if result is None:
                continue
            if response.error or result.is_last(response):
                del self._results[response.request_id]
            result.put(response)
            if result.aqueue is not None:
                queues.append(result.aqueue)
        if queues:
            AsyncQueue.wake_all(queues)


def _load_config(folder, trusted):
    """Load the configuration like 1.2.1, which trusts its code whatever the argument says.

    Source: `_load_and_validate_config` in _torch/pyexecutor/model_loader.py of NVIDIA/TensorRT-LLM.
    """
    if "auto_map" in json.loads((Path(folder) / "config.json").read_text()):
        from transformers import AutoConfig

        AutoConfig.from_pretrained(folder, trust_remote_code=trusted)


def _look_for_processor(folder):
    """Refuse a vision-language model without the files of its processor.

    Source: `create_input_processor` in inputs/registry.py, which calls
    `AutoProcessor.from_pretrained` for the registered classes of 1.2.1.
    """
    architectures = json.loads((folder / "config.json").read_text()).get("architectures") or ()
    names = ("preprocessor_config.json", "processor_config.json")
    if _WITH_PROCESSOR.isdisjoint(architectures) or any((folder / name).exists() for name in names):
        return
    raise OSError(f"Can't load image processor for '{folder}': it has no {names[0]} file")


def _read_eos_id(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in tokens if token["content"] == config["eos_token"])
