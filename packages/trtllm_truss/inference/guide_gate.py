"""The check of a request's guide, before the request queues for the engine."""

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
    """Refuses requests with guides that the engine must not compile.

    A waiting request holds no place in the engine and does not count for `hang_timeout_s`.

    Args:
        check: the check for the engine's vocabulary.
    """

    def __init__(self, check: GuideValidator) -> None:
        self._check = check

    async def admit(self, request: GenerationRequest) -> None:
        """Wait for the check of a request's guide.

        Raises:
            InvalidRequest: the guide is refused.
            QueueFull: too many guides are unchecked.
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
    """Build the check for an engine, or None without guided decoding; starts nothing.

    Args:
        engine: the engine.
        tokenizer_info: TensorRT-LLM's vocabulary file; None without guided decoding.
        environment: variables of the trial program.
        compile_limit_s: CPU time per guide.
    """
    if engine.kind is EngineKind.CPU:
        program = ["-m", _CPU_WORKER, str(engine.folder.resolve())]
        return GuideValidator(program, environment, compile_limit_s)
    if tokenizer_info is None:
        return None
    if importlib.util.find_spec("xgrammar") is None:
        logger.warning(
            "XGrammar's Python package is not installed: of guides only length, depth and "
            "repetitions are checked"
        )
    return GuideValidator(["-m", _GPU_WORKER, str(tokenizer_info)], environment, compile_limit_s)
