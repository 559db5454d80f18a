"""The Triton backend `openvino_genai`: passes requests from Triton to the scheduler."""

from __future__ import annotations

import json
import logging
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.kill_parent_on_death import KillParentOnDeath
from trtllm_truss.backends.numpy_abi import repair_reading
from trtllm_truss.backends.openvino_genai.engine import Engine
from trtllm_truss.backends.openvino_genai.parameters import read_settings
from trtllm_truss.backends.openvino_genai.scheduler import Scheduler
from trtllm_truss.backends.token_model.request import read_request
from trtllm_truss.backends.token_model.tensors import Tensors, UnsupportedRequest
from trtllm_truss.backends.token_model.triton import TritonSender, end_server, log_through_triton
from trtllm_truss.guides.guide import GUIDE_IS_CHECKED

logger = logging.getLogger(__package__)

repair_reading()


class TritonPythonModel:
    """One model with this backend. Triton calls all methods from one thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and begin to serve.

        Raises:
            pb_utils.TritonModelException: config.pbtxt is not that of a decoupled model.
            ParameterError: a parameter in it is invalid.
            ModelFilesError: the engine folder does not hold a model.
        """
        log_through_triton(logger, "openvino_genai")
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
        self._scheduler = Scheduler(engine, settings, on_death=end_server)
        self._scheduler.start()
        self._kill_on_death = KillParentOnDeath()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = TritonSender(request.get_response_sender(), logger)
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

    def _take(self, request: Any, sender: TritonSender) -> None:
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
