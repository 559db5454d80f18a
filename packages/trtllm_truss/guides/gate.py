"""Gate of requests with guides: a guide is validated before its request queues for the engine."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.errors import RETRY_AFTER_S, InvalidRequest, QueueFull, unavailable
from trtllm_truss.guides.guide import (
    CheckedGuide,
    CheckFailed,
    GuideFault,
    KeptGuides,
    TooManyGuides,
)
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.releases import holds
from trtllm_truss.requests import GenerationRequest, Guide

_LLGUIDANCE_OPTIONS = '{"x-guidance": ' + json.dumps(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)


class GuideGate:
    """Rejects requests with guides that the engine must not compile.

    A waiting request holds no slot and is not counted for `hang_timeout_s`.

    Args:
        check: the validator for the engine's vocabulary.
        kept: the guides that the engine keeps until it exits; None if it frees them itself.
        library: the engine's grammar library.
    """

    def __init__(
        self,
        check: GuideValidator,
        kept: KeptGuides | None = None,
        library: str | None = "xgrammar",
    ) -> None:
        self._check = check
        self._kept = kept
        self._library = library

    def fix_blanks(self, guide: Guide) -> Guide:
        """Return the guide of JSON without other blanks than one after each comma and colon.

        LLGuidance reads options in the schema
        (https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md). For XGrammar,
        the check writes a grammar.
        """
        if guide.language != "json_schema":
            return guide
        if self._library != "llguidance":
            return guide._replace(fixes_blanks=True)
        rest = guide.text.removeprefix("{")
        return guide._replace(text=_LLGUIDANCE_OPTIONS + ("" if rest == "}" else ", ") + rest)

    def begin(self, guide: Guide) -> Future[CheckedGuide] | None:
        """Start the check that `admit` waits for; None if it would refuse the guide without one."""
        if self._kept is not None and guide not in self._kept and not self._kept.has_room():
            return None
        return self._check.check(self._checked_form(guide))

    def _checked_form(self, guide: Guide) -> Guide:
        if self._library == "llguidance":  # it reads schemas itself
            return guide._replace(is_strict=False, strict_parts=())
        return guide

    def engine_is_gone(self) -> None:
        if self._kept is not None:
            self._kept.clear()

    async def admit(self, request: GenerationRequest, guide: Guide) -> CheckedGuide:
        """Wait for the check of a request's guide.

        Raises:
            InvalidRequest: the guide is invalid.
            QueueFull: too many guides wait for their check, or the engine holds too many.
            EngineUnavailable: the check failed.
        """
        name = request.name("guide")
        guide = self._checked_form(guide)
        if self._library == "llguidance":
            return (await self._checked(guide, name))._replace(guide=guide)
        if self._kept is None:
            return await self._checked(guide, name)
        if guide not in self._kept and not self._kept.has_room():
            raise _full(name)
        checked = await self._checked(guide, name)
        if guide not in self._kept and not self._kept.has_room(checked.kept_bytes):
            raise _full(name)
        self._kept.add(guide, checked.kept_bytes)
        return checked

    async def _checked(self, guide: Guide, name: str) -> CheckedGuide:
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


def kept_guides_for(deployment: Deployment) -> KeptGuides | None:
    """Return the budget of an engine that never frees a guide; None if it frees them itself.

    The CPU engine does; LLGuidance keeps none. From 1.1 on XGrammar in TensorRT-LLM drops the
    oldest of more than `XGRAMMAR_CACHE_LIMIT_GB`, by default 1: the row `guides-are-freed` of
    docs/assumptions.md has the sources.
    """
    settings = deployment.settings
    if deployment.engine.guided_decoding_backend(settings) != "xgrammar":
        return None
    if holds("frees_guides", deployment.version or None, unknown=False):
        return None
    return KeptGuides(settings.serving.guide_memory_bytes)
