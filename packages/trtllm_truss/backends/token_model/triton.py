"""The side of a backend that faces Triton: responses, log and end of the server."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.numpy_abi import readable_copy
from trtllm_truss.backends.token_model.responses import Outputs

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonSender:
    def __init__(self, sender: Any, logger: logging.Logger) -> None:
        self._sender = sender
        self._logger = logger
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
            self._logger.warning("cannot send a response: %s", error)
            self._broken = True


class _TritonLog(logging.Handler):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        line = f"[{self._name}] {self.format(record)}"
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(line)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(line)
        else:
            pb_utils.Logger.log_info(line)


def log_through_triton(logger: logging.Logger, backend: str) -> None:
    """Pass a logger's records to Triton's log, marked with the backend's name."""
    logger.setLevel(logging.INFO)
    logger.handlers = [_TritonLog(backend)]
    logger.propagate = False


def end_server() -> None:
    """End Triton, our parent process, so that its supervisor restarts it."""
    os.kill(os.getppid(), signal.SIGTERM)
