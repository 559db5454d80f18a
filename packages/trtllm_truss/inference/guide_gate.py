"""Validate the guide of a request before the request queues for the engine."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import InvalidRequest, QueueFull
from trtllm_truss.guides.guide import CheckFailed, GuideFault, KeptGuides, TooManyGuides
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.releases.facts import holds
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.client.failures import RETRY_AFTER_S, unavailable

logger = logging.getLogger(__name__)


class GuideGate:
    """Rejects requests with guides that the engine must not compile.

    A waiting request holds no slot and does not count for `hang_timeout_s`.

    Args:
        check: the validator for the engine's vocabulary.
        kept: the guides that the engine keeps until it ends; None if it frees them itself.
    """

    def __init__(self, check: GuideValidator, kept: KeptGuides | None = None) -> None:
        self._check = check
        self._kept = kept

    def engine_is_gone(self) -> None:
        if self._kept is not None:
            self._kept.clear()

    async def admit(self, request: GenerationRequest, guide: Guide) -> int:
        """Wait for the check of a request's guide.

        Returns:
            The memory of the compiled guide in bytes; 0 if the engine has it already.

        Raises:
            InvalidRequest: the guide is invalid.
            QueueFull: too many guides wait for their check, or the engine keeps too many.
            EngineUnavailable: the check failed.
        """
        name = request.name("guide")
        if self._kept is None:
            return await self._checked(guide, name)
        if guide in self._kept:
            return 0
        if not self._kept.has_room():
            raise _full(name)
        compiled_bytes = await self._checked(guide, name)
        if guide not in self._kept and not self._kept.has_room(compiled_bytes):
            raise _full(name)
        self._kept.add(guide, compiled_bytes)
        return compiled_bytes

    async def _checked(self, guide: Guide, name: str) -> int:
        try:
            return await asyncio.wrap_future(self._check.check(guide))
        except GuideFault as fault:
            raise InvalidRequest(f"{name} cannot be followed: {fault}", param=name) from None
        except TooManyGuides as error:
            raise QueueFull(str(error), param=name, retry_after_s=RETRY_AFTER_S) from None
        except CheckFailed as error:
            raise unavailable(str(error)) from None


def _full(name: str) -> QueueFull:
    return QueueFull(
        f"{name} is a new guide, and the engine has no memory for further ones until it restarts "
        "(serving.guide_memory_bytes); send one that was sent before.",
        param=name,
        retry_after_s=RETRY_AFTER_S,
    )


def kept_guides_for(
    engine: Engine, settings: Settings, tensorrt_llm_version: str | None
) -> KeptGuides | None:
    """Return the budget of an engine that never frees a guide; None if it frees them itself.

    The CPU engine does; LLGuidance keeps none. From 1.1 on XGrammar in TensorRT-LLM drops the
    oldest of more than `XGRAMMAR_CACHE_LIMIT_GB`, by default 1: the row `guides-are-freed` of
    `selftest`'s table of assumptions has the sources.
    """
    if engine.guided_decoding_backend(settings) != "xgrammar":
        return None
    if holds("frees_guides", tensorrt_llm_version or None, unknown=False):
        return None
    return KeptGuides(settings.serving.guide_memory_bytes)


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
    program = engine.guide_check(tokenizer_info)
    if program is None:
        return None
    if tokenizer_info is not None and importlib.util.find_spec("xgrammar") is None:
        logger.warning(
            "XGrammar's Python package is not installed: only length, depth and repetitions of "
            "guides are checked"
        )
    return GuideValidator(program, environment, compile_limit_s)
