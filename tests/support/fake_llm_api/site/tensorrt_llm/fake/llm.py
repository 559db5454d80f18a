"""`LLM` and its proxy of the worker process."""

import atexit
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import types
from multiprocessing.connection import Connection
from pathlib import Path

from tensorrt_llm.fake.errors import EngineDeadError, LoRARequest, RequestError
from tensorrt_llm.fake.llm_args import check_arguments
from tensorrt_llm.fake.result import AsyncQueue, RequestOutput, Response
from tensorrt_llm.fake.sampling import SamplingParams
from tensorrt_llm.fake.versions import IS_1_3

_SHUTDOWN_OF_DEAD_S = 5


class LLM:
    def __init__(self, model, tokenizer=None, **given):
        given = {"model": model, "tokenizer": tokenizer, **given}
        self.args = types.SimpleNamespace(**check_arguments(given))
        _load_config(model, trusted=given.get("trust_remote_code") or not IS_1_3)
        self._eos_id = None
        if not self.args.skip_tokenizer_init:
            self._eos_id = _read_eos_id(Path(tokenizer or model))
        self._executor = Proxy(vars(self.args))
        atexit.register(self.shutdown)
        if IS_1_3:
            self._check_health = self._executor.check_health

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
        allowed |= {"trace_headers", "priority"} if IS_1_3 else set()
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

    def shutdown(self):
        atexit.unregister(self.shutdown)
        self._executor.shutdown()

    def _check(self, prompt, params):
        longest = self.args.max_num_tokens
        if len(prompt) > longest and not self.args.enable_chunked_prefill:
            error = RequestError if IS_1_3 else ValueError
            raise error(
                f"The length of prompt tokens ({len(prompt)}) should not exceed max_num_tokens "
                f"({longest})"
            )
        if params.guided_decoding is not None and not self.args.guided_decoding_backend:
            raise ValueError("Guided decoding needs guided_decoding_backend.")


class Proxy:
    """The worker process, and the thread that reads its responses for all requests."""

    def __init__(self, args):
        self._ids = itertools.count(1)
        self._results = {}
        self._fatal = None
        self._closed = False
        self._dead = threading.Event()
        ours, workers = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mpi4py.futures.server", str(workers.fileno())],
            pass_fds=[workers.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        workers.close()
        self._wire = Connection(ours.detach())
        self._wire.send(args)
        self._wait_until_ready()
        threading.Thread(target=self._dispatch, daemon=True).start()

    def submit(self, prompt, params, lora_request, streaming):
        if self._fatal is not None:
            self.shutdown()
            raise self._fatal
        if self._closed:
            raise RuntimeError("LLM is shutting down.")
        if IS_1_3 and self._dead.is_set():
            raise EngineDeadError("the engine is dead")
        request_id = next(self._ids)
        result = RequestOutput(request_id, prompt, params, lambda key: self._send("abort", key))
        self._results[request_id] = result
        self._send("add", (request_id, prompt, params, lora_request, streaming))
        return result

    def check_health(self):
        return not self._dead.is_set() and self._fatal is None and not self._closed

    def shutdown(self):
        if self._closed:
            return
        self._closed, was_dead = True, self._dead.is_set()
        self._send("shutdown", None)
        self._process.wait(_SHUTDOWN_OF_DEAD_S if IS_1_3 and was_dead else None)
        if not IS_1_3 and was_dead:
            threading.Event().wait()  # for a future that nobody will ever set

    def _send(self, kind, value):
        try:
            self._wire.send((kind, value))
        except OSError:
            self._dead.set()

    def _wait_until_ready(self):
        try:
            error = self._wire.recv()
        except EOFError:
            self._process.wait()
            if not IS_1_3:  # the future of the worker stays pending
                threading.Event().wait()
            raise RuntimeError("Executor worker died during initialization") from None
        if error is not None:
            self._process.wait()
            raise RuntimeError("Executor worker returned error") from error

    def _dispatch(self):
        while True:
            try:
                responses = self._wire.recv()
            except (EOFError, OSError):
                break
            if isinstance(responses, Exception):
                self._fatal = responses
            else:
                self._deliver(responses)
        self._dead.set()
        self._process.wait()
        if IS_1_3:
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


def _read_eos_id(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in tokens if token["content"] == config["eos_token"])
