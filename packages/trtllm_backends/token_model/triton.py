"""A backend's interface to Triton: responses, log and exit of the server."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_backends.tensors import Tensors, readable_copy, repair_reading
from trtllm_backends.token_model.responses import Outputs, ResponseSender
from trtllm_truss.errors import InvalidRequest

repair_reading()

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

_wire = threading.Lock()
"""Held while a thread uses the stub, which can crash when two threads do at once (24.10)."""


class TokenModel:
    """Base of the class `TritonPythonModel` of a backend."""

    logger: logging.Logger

    def submit(self, request: Any, tensors: Tensors, sender: ResponseSender) -> None:
        """Start a request and return at once; responses go to `sender`.

        Raises:
            InvalidRequest: it cannot be served; the caller is at fault.
        """
        raise NotImplementedError

    def stop_request(self, request_id: str) -> None:
        """Stop the request in flight with this id, if any."""
        raise NotImplementedError

    def read_config(self, args: dict[str, str], backend: str) -> dict[str, Any]:
        """Pass the log to Triton, marked with the backend's name, and parse config.pbtxt.

        Raises:
            pb_utils.TritonModelException: config.pbtxt does not declare a decoupled model.
        """
        log_through_triton(self.logger, backend)
        config: dict[str, Any] = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(
                f"The backend {backend} needs model_transaction_policy {{ decoupled: true }}."
            )
        return config

    def execute(self, requests: list[Any]) -> None:
        """Implement Triton's interface."""
        for request in requests:
            with _wire:
                sender = TritonSender(request.get_response_sender(), self.logger)
            try:
                self._take(request, sender)
            except InvalidRequest as refusal:
                sender.fail(refusal.message, caller_at_fault=True)
            except Exception as error:
                self.logger.exception("cannot read a request")
                sender.fail(f"The request cannot be read: {error}", caller_at_fault=False)

    def _take(self, request: Any, sender: TritonSender) -> None:
        with _wire:
            tensors = Tensors.of(request)
        if not tensors.flag("stop", False):
            self.submit(request, tensors, sender)
            return
        request_id = request.request_id()
        if not request_id:
            raise InvalidRequest("Trying to stop a request but request ID is not provided")
        self.stop_request(request_id)
        sender.finish()


class TritonSender:
    def __init__(self, sender: Any, logger: logging.Logger) -> None:
        self._sender = sender
        self._logger = logger
        self._broken = False

    def send(self, outputs: Outputs, *, final: bool) -> None:
        with _wire:  # also when the tensors are freed
            self._send(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor(name, readable_copy(array)) for name, array in outputs.items()]
                ),
                _FINAL if final else 0,
            )

    def finish(self) -> None:
        with _wire:
            self._send(None, _FINAL)

    def fail(self, message: str, *, caller_at_fault: bool) -> None:
        kind = pb_utils.TritonError
        with _wire:
            if caller_at_fault:  # a stream carries only text, so the text contains the code
                error = kind(f"invalid argument: {message}", kind.INVALID_ARG)
            else:
                error = kind(message, kind.INTERNAL)
            self._send(pb_utils.InferenceResponse(error=error), _FINAL)

    def is_cancelled(self) -> bool:
        with _wire:
            return self._broken or bool(self._sender and self._sender.is_cancelled())

    def _send(self, response: Any, flags: int) -> None:
        try:
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)
        except pb_utils.TritonModelException as error:
            self._logger.warning("cannot send a response: %s", error)
            self._broken = True
        if flags:
            self._sender = None  # finishing it notifies Triton, so it must hold the lock


class Gauges:
    """Gauges on Triton's metrics page, one per label value, created with its first number.

    Args:
        name: name of all gauges.
        about: their description.
        label: the name of the label.
        args: arguments of `initialize`.
    """

    def __init__(self, name: str, about: str, label: str, args: Mapping[str, str]) -> None:
        self._name, self._about, self._label = name, about, label
        self._others = {"model": args["model_name"], "version": args["model_version"]}
        self._family: Any = None
        self._gauges: dict[str, Any] = {}
        self._is_closed = False

    def set(self, values: Mapping[str, float]) -> None:
        """Set gauges; those without a value are unchanged.

        Raises:
            pb_utils.TritonModelException: Triton has no metrics.
        """
        with _wire:
            for kind, value in values.items() if not self._is_closed else ():
                if kind not in self._gauges:
                    self._gauges[kind] = self._new(kind)
                self._gauges[kind].set(value)

    def close(self) -> None:
        """Remove the gauges; later values are dropped."""
        with _wire:
            self._is_closed = True
            self._gauges.clear()
            self._family = None

    def _new(self, kind: str) -> Any:
        if self._family is None:
            self._family = pb_utils.MetricFamily(
                name=self._name, description=self._about, kind=pb_utils.MetricFamily.GAUGE
            )
        return self._family.Metric(labels={self._label: kind, **self._others})


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
