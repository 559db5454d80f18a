"""Validate the guide of a request before the request queues for the engine."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.engines.inspection import Engine, EngineKind
from trtllm_truss.errors import InvalidRequest, QueueFull
from trtllm_truss.guides.guide import CheckFailed, Guide, GuideFault, TooManyGuides
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.triton.client.failures import RETRY_AFTER_S, unavailable

logger = logging.getLogger(__name__)

_CPU_WORKER = "trtllm_truss.backends.openvino_genai.grammar_compiler_worker"
_GPU_WORKER = "trtllm_truss.guides.xgrammar_worker"


class GuideGate:
    """Rejects requests with guides that the engine must not compile.

    A waiting request holds no slot and does not count for `hang_timeout_s`.

    Args:
        check: the validator for the engine's vocabulary.
    """

    def __init__(self, check: GuideValidator) -> None:
        self._check = check

    async def admit(self, request: GenerationRequest) -> None:
        """Wait for the check of a request's guide.

        Raises:
            InvalidRequest: the guide is invalid.
            QueueFull: too many guides wait for their check.
            EngineUnavailable: the check failed.
        """
        guide = request.guide
        if guide is None or guide.kind == "json":
            return
        name = request.name("guide")
        try:
            await asyncio.wrap_future(self._check.check(Guide(guide.kind, guide.text)))
        except GuideFault as fault:
            raise InvalidRequest(f"{name} cannot be followed: {fault}", param=name) from None
        except TooManyGuides as error:
            raise QueueFull(str(error), param=name, retry_after_s=RETRY_AFTER_S) from None
        except CheckFailed as error:
            raise unavailable(str(error)) from None


def guide_check_for(
    engine: Engine,
    tokenizer_info: Path | None,
    environment: Mapping[str, str],
    compile_limit_s: float,
) -> GuideValidator | None:
    """Build the validator for an engine without starting it; None without guided decoding.

    Args:
        engine: the engine.
        tokenizer_info: TensorRT-LLM's vocabulary file; None without guided decoding.
        environment: environment of the worker process.
        compile_limit_s: CPU time per guide.
    """
    if engine.kind is EngineKind.CPU:
        program = ["-m", _CPU_WORKER, str(engine.folder.resolve())]
        return GuideValidator(program, environment, compile_limit_s)
    if tokenizer_info is None:
        return None
    if importlib.util.find_spec("xgrammar") is None:
        logger.warning(
            "XGrammar's Python package is not installed: only length, depth and repetitions of "
            "guides are checked"
        )
    return GuideValidator(["-m", _GPU_WORKER, str(tokenizer_info)], environment, compile_limit_s)
