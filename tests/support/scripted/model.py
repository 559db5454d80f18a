"""A stand-in for the `tensorrtllm` backend that plays a script, for tests on real Triton.

Put a folder `tensorrtllm` with this file into `TRITON_BACKEND_DIRECTORY`, and the production
`config.pbtxt` loads unchanged. The engine folder (`gpt_model_path`) holds

    script.json          how the engine behaves and how it answers by default
    <request id>.json    how it answers one request, over the defaults
    seen.jsonl           written here: what arrived and how each request ended

Keys of the engine: `load_s` (time to load), `load_error` (text to fail with), `load_exit` (exit
status to die with while loading).

Keys of an answer:
    tokens          ids to give, one per response; default: the prompt's ids
    delay_s         time before each response
    first_delay_s   time before the first one instead
    final           "with_last" (as the C++ backend), "after_last" (a last response without ids),
                    "empty" (a flag without a response), "never" (the stream stays open)
    error, error_at fail with this text once so many tokens were given (0: before the first)
    exit, exit_at   end this process with this status once so many tokens were given
    kill_at         kill the server once so many tokens were given
    freeze_at       give nothing more once so many tokens were given
    ignore_cancel   go on although the request was cancelled
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.numpy_abi import readable_copy, repair_reading

repair_reading()

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_DEFAULTS = {"delay_s": 0.0, "final": "with_last", "ignore_cancel": False}


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._folder = Path(parameters["gpt_model_path"]["string_value"])
        script = self._read("script")
        time.sleep(script.get("load_s", 0))
        if "load_exit" in script:
            os._exit(script["load_exit"])
        if "load_error" in script:
            raise pb_utils.TritonModelException(script["load_error"])
        self._log = threading.Lock()
        self._wire = threading.Lock()  # the stub dies at times when many threads send at once

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self._note(
            request,
            event="request",
            inputs={k: _plain(v) for k, v in inputs.items()},
            outputs=list(request.requested_output_names()),
        )
        script = {**_DEFAULTS, **self._read("script"), **self._read(request.request_id())}
        tokens = script.get("tokens", inputs["input_ids"].ravel().tolist())
        tokens = tokens[: int(inputs["request_output_len"].item())]
        sender = request.get_response_sender()
        given = 0
        while True:
            first = given == 0 and "first_delay_s" in script
            time.sleep(script["first_delay_s" if first else "delay_s"])
            if not script["ignore_cancel"] and self._is_cancelled(sender):
                self._note(request, event="cancelled", given=given)
                self._send(sender, _response(request, []), _FINAL)
                return
            if self._misbehave(request, script, sender, given):
                return
            if given == len(tokens):
                break
            last = given + 1 == len(tokens) and script["final"] == "with_last"
            if last and script.get("error_at") != given + 1:
                self._note(request, event="finished", given=given + 1)
                self._send(sender, _response(request, tokens[given:]), _FINAL)
                return
            self._send(sender, _response(request, [tokens[given]]))
            given += 1
        self._note(request, event="finished", given=given)
        if script["final"] == "after_last":
            self._send(sender, _response(request, []), _FINAL)
        elif script["final"] != "never":
            self._send(sender, None, _FINAL)
        else:
            time.sleep(3600)

    def _misbehave(self, request, script, sender, given):
        if script.get("error_at") == given:
            self._note(request, event="failed", given=given)
            error = pb_utils.TritonError(script["error"])
            self._send(sender, pb_utils.InferenceResponse(error=error), _FINAL)
            return True
        if script.get("exit_at") == given:
            os._exit(script.get("exit", 1))
        if script.get("kill_at") == given:
            os.kill(os.getppid(), signal.SIGKILL)
        if script.get("freeze_at") == given:
            time.sleep(3600)
        return False

    def _is_cancelled(self, sender):
        with self._wire:
            return sender.is_cancelled()

    def _send(self, sender, response, flags=0):
        with self._wire:
            if response is None:
                sender.send(flags=flags)
            else:
                sender.send(response, flags=flags)

    def _read(self, name):
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if name and path.exists() else {}

    def _note(self, request, **fields):
        line = json.dumps({"id": request.request_id(), "at": time.time(), **fields})
        with self._log, (self._folder / "seen.jsonl").open("a") as file:
            file.write(line + "\n")


def _response(request, tokens):
    tensors = [
        _tensor("output_ids", [[tokens]], np.int32),
        _tensor("sequence_length", [[len(tokens)]], np.int32),
        _tensor("cum_log_probs", [[-0.5 * len(tokens)]], np.float32),
        _tensor("output_log_probs", [[[-0.5] * len(tokens)]], np.float32),
    ]
    asked_for = request.requested_output_names()  # the stub dies of dropping others (3.13)
    return pb_utils.InferenceResponse([each for each in tensors if each.name() in asked_for])


def _tensor(name, values, dtype):
    return pb_utils.Tensor(name, readable_copy(np.array(values, dtype=dtype)))


def _plain(array):
    return [x.decode() if isinstance(x, bytes) else x for x in array.ravel().tolist()]
