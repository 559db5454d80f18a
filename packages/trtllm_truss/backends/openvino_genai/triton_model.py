"""The Triton backend `openvino_genai`: passes requests from Triton to the scheduler."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.kill_parent_on_death import KillParentOnDeath
from trtllm_truss.backends.numpy_abi import readable_copy, repair_reading
from trtllm_truss.backends.openvino_genai.engine import Engine
from trtllm_truss.backends.openvino_genai.parameters import read_settings
from trtllm_truss.backends.openvino_genai.request import read_request
from trtllm_truss.backends.openvino_genai.responses import Outputs
from trtllm_truss.backends.openvino_genai.scheduler import Scheduler
from trtllm_truss.backends.openvino_genai.tensors import Tensors, UnsupportedRequest
from trtllm_truss.guides.guide import GUIDE_IS_CHECKED

logger = logging.getLogger(__package__)

repair_reading()

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One model with this backend. Triton calls all methods from one thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and begin to serve.

        Raises:
            pb_utils.TritonModelException: config.pbtxt is not that of a decoupled model.
            ParameterError: a parameter in it is invalid.
            ModelFilesError: the engine folder does not hold a model.
        """
        _log_through_triton()
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(
                "The CPU engine needs model_transaction_policy { decoupled: true }."
            )
        settings = read_settings(config)
        if settings.ignored:
            logger.info("ignoring GPU-only parameters: %s", ", ".join(settings.ignored))
        engine = Engine(settings)
        self._limits = engine.limits
        self._scheduler = Scheduler(engine, settings, on_death=_end_server)
        self._scheduler.start()
        self._kill_on_death = KillParentOnDeath()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = _TritonSender(request.get_response_sender())
            try:
                self._take(request, sender)
            except UnsupportedRequest as refusal:
                sender.fail(str(refusal), caller_at_fault=True)
            except Exception as error:
                logger.exception("cannot read a request")
                sender.fail(f"The request cannot be read: {error}", caller_at_fault=False)

    def finalize(self) -> None:
        self._scheduler.close()
        self._kill_on_death.stop()

    def _take(self, request: Any, sender: _TritonSender) -> None:
        tensors = Tensors({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        request_id = request.request_id()
        if tensors.flag("stop", False):
            if not request_id:
                raise UnsupportedRequest("Trying to stop a request but request ID is not provided")
            self._scheduler.stop_request(request_id)
            sender.finish()
            return
        outputs = request.requested_output_names()
        checked = bool(json.loads(request.parameters()).get(GUIDE_IS_CHECKED, False))
        read = read_request(request_id, tensors, outputs, self._limits, guide_is_checked=checked)
        self._scheduler.submit(read, sender)


class _TritonSender:
    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._broken = False

    def send(self, outputs: Outputs, *, final: bool) -> None:
        tensors = [pb_utils.Tensor(name, readable_copy(array)) for name, array in outputs.items()]
        self._send(pb_utils.InferenceResponse(tensors), _FINAL if final else 0)

    def finish(self) -> None:
        self._send(None, _FINAL)

    def fail(self, message: str, *, caller_at_fault: bool) -> None:
        kind = pb_utils.TritonError
        if caller_at_fault:  # a stream carries only the text, so the text holds the code
            error = kind(f"invalid argument: {message}", kind.INVALID_ARG)
        else:
            error = kind(message, kind.INTERNAL)
        self._send(pb_utils.InferenceResponse(error=error), _FINAL)

    def is_cancelled(self) -> bool:
        return self._broken or bool(self._sender.is_cancelled())

    def _send(self, response: Any, flags: int) -> None:
        try:
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)
        except pb_utils.TritonModelException as error:
            logger.warning("cannot send a response: %s", error)
            self._broken = True


class _TritonLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = f"[openvino_genai] {self.format(record)}"
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(line)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(line)
        else:
            pb_utils.Logger.log_info(line)


def _log_through_triton() -> None:
    logger.setLevel(logging.INFO)
    logger.handlers = [_TritonLog()]
    logger.propagate = False


def _end_server() -> None:
    """End Triton, our parent process, so that its supervisor restarts it."""
    os.kill(os.getppid(), signal.SIGTERM)
