"""The Triton backend `openvino_genai`, which passes requests from Triton to the scheduler."""

from __future__ import annotations

import json
import logging
from typing import Any

from trtllm_backends.kill_parent_on_death import KillParentOnDeath
from trtllm_backends.openvino_genai.engine import GenAiEngine, read_settings
from trtllm_backends.openvino_genai.scheduler import Scheduler
from trtllm_backends.openvino_genai.scoring import validate_scored
from trtllm_backends.tensors import Tensors
from trtllm_backends.token_model.request import read_request
from trtllm_backends.token_model.responses import ResponseSender
from trtllm_backends.token_model.triton import TokenModel
from trtllm_truss.requests import GUIDE_BYTES, UNREPEATABLE

logger = logging.getLogger(__package__)


class TritonPythonModel(TokenModel):
    """One model with this backend. Triton calls all methods from one thread."""

    logger = logger

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start serving.

        Raises:
            pb_utils.TritonModelException: config.pbtxt does not declare a decoupled model.
            ParameterError: a parameter in it is invalid.
            ModelFilesError: the engine folder does not contain a model.
        """
        settings = read_settings(self.read_config(args, "openvino_genai"))
        if settings.ignored:
            logger.info("ignoring GPU-only parameters: %s", ", ".join(settings.ignored))
        engine = GenAiEngine(settings)
        self._limits = engine.limits
        self._kill_on_death = KillParentOnDeath()
        self._scheduler = Scheduler(engine, settings, on_death=self._kill_on_death.end_parent)
        self._scheduler.start()

    def finalize(self) -> None:
        self._scheduler.close()
        self._kill_on_death.stop()

    def stop_request(self, request_id: str) -> None:
        self._scheduler.stop_request(request_id)

    def submit(self, request: Any, tensors: Tensors, sender: ResponseSender) -> None:
        """Implement `TokenModel.submit`."""
        parameters = json.loads(request.parameters())
        read = read_request(
            request.request_id(),
            tensors,
            request.requested_output_names(),
            self._limits,
            guide_bytes=_guide_bytes(parameters),
            is_seeded=parameters.get(UNREPEATABLE) is not True,
        )
        validate_scored(read)
        self._scheduler.submit(read, sender)


def _guide_bytes(parameters: dict[str, Any]) -> int | None:
    value = parameters.get(GUIDE_BYTES)
    return value if isinstance(value, int) else None
