"""The Triton backend `llm_api`, which passes requests from Triton to the LLM."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from typing import Any

from trtllm_backends.kill_parent_on_death import KillParentOnDeath
from trtllm_backends.llm_api.engine import LlmEngine
from trtllm_backends.llm_api.library import import_library
from trtllm_backends.llm_api.request import read_llm_request, read_settings, served_inputs
from trtllm_backends.tensors import Tensors
from trtllm_backends.token_model.responses import ResponseSender
from trtllm_backends.token_model.triton import Gauges, TokenModel
from trtllm_truss.engines.checkpoint.samplers import sampler_arguments

logger = logging.getLogger(__package__)

_EXIT_AFTER_S = 3.0
_BLOCKS = "trtllm_truss_kv_cache_blocks"
_BLOCKS_ARE = "Blocks of the engine's KV cache, and tokens per block, in its last step."


class TritonPythonModel(TokenModel):
    """One model with this backend. Triton calls all methods from one thread."""

    logger = logger

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint and start serving.

        Raises:
            pb_utils.TritonModelException: config.pbtxt does not declare a decoupled model.
            ParameterError: a parameter in it is invalid, or unknown to this TensorRT-LLM.
            ImportError: TensorRT-LLM is not installed.
            EngineFailed: the LLM failed to start.
        """
        settings = read_settings(self.read_config(args, "llm_api"))
        library = import_library()
        # The version is known in every image only at this point.
        arguments = {**sampler_arguments(library.version, settings.llm_args), **settings.llm_args}
        library.check_arguments(arguments)
        self._settings = replace(settings, llm_args=arguments)
        self._limits = self._settings.limits(served_inputs(library.version, arguments))
        logger.info("TensorRT-LLM %s loads %s", library.version, self._settings.model_folder.name)
        self._kill_on_death = KillParentOnDeath()
        on_death = self._kill_on_death.end_parent
        self._blocks = Gauges(_BLOCKS, _BLOCKS_ARE, "kv_cache_block_type", args)
        self._engine = LlmEngine(library, self._settings, self._limits, on_death, self._blocks.set)
        try:
            self._engine.start()
        except BaseException:
            self._kill_on_death.stop()
            raise

    def finalize(self) -> None:
        is_closed = self._engine.close()
        self._blocks.close()
        self._kill_on_death.stop()
        if not is_closed:  # the library's exit handler may wait for a dead worker
            timer = threading.Timer(_EXIT_AFTER_S, os._exit, (0,))
            timer.daemon = True
            timer.start()

    def stop_request(self, request_id: str) -> None:
        self._engine.stop_request(request_id)

    def submit(self, request: Any, tensors: Tensors, sender: ResponseSender) -> None:
        """Implement `TokenModel.submit`."""
        read = read_llm_request(
            request.request_id(),
            tensors,
            request.requested_output_names(),
            self._limits,
            self._settings,
            request.parameters(),
        )
        self._engine.submit(read, sender)
